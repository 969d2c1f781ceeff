// Package eventlog is the event log in PostgreSQL: it appends events, each once, and reads them. It
// makes no decision about an event; commands and projections do.
package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/crossings"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/origins"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/reads"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// Config says how the log is written.
type Config struct {
	Producer events.Producer
	Region   string // of the deployment: the data residency of the platform's own events; "": unspecified
	Writers  int    // group-committing writers, 0: 4. Partition p is written by writer p mod Writers; small submissions by one more
	// LongestWait is how long a submission may have to wait for its writer, as
	// estimated, before it is refused at once; 0: half a second.
	LongestWait time.Duration
	Now         func() time.Time
	NewID       func() uuid.UUID
	Logger      *slog.Logger
	Ticks       loop.Ticks // the moments at which the heads are compared with the server
	// HotReads, if set, is the pool that ReadStretches reads with: its sessions keep
	// their plans.
	HotReads postgres.Queryer
	// OnAppend is called after each commit, with the partitions that grew. It must not block.
	OnAppend func(partitions []int16)
	// Recent, if set, caches the events of committed submissions for the consumers and the relay of this process.
	Recent *recent.Cache
	// Inline, if set, folds events in the transaction that appends them.
	Inline Inline
	// Histories decides quota requests. Without it the log accepts no such request.
	Histories Histories
	// OnInMemory is called instead of OnAppend if consumers of this process are notified of all events of the
	// commit.
	OnInMemory func(partitions []int16)
	// Written, if set, is offered the events of each append, with payloads in memory of their own. It must
	// not block.
	Written func(n int, event func(i int) (events.Subject, []byte))
	// Appended, if set, is called with the events of an append that began at a time, in the context of the caller: after the
	// commit of a submission, and before the caller of AppendTx commits. It must not block.
	Appended func(ctx context.Context, began time.Time, n int, event func(i int) (*events.Pending, events.Position))
	// OnRaised is called after this instance began epochs of the log. It must not block.
	OnRaised func([]Raised)
}

// Log is the event log in PostgreSQL. It implements metering.UsageLog, and the appends and
// reads of relays and folds.
type Log struct {
	*reads.Reader
	cfg        Config
	db         server.Database
	aside      postgres.Pool // AsideConns connections, for statements that a holder of a pool connection waits for
	closeAside func()        // after all use
	id         uuid.UUID     // of the log, in the headers of its records
	newLife    loop.Hint     // asks watchLife to raise the epoch
	durable    durable
	origins    *origins.Origins

	writers []*writer
	shared  *writer      // of small submissions, ahead of writers
	mu      sync.RWMutex // guards closed against late submissions
	closed  bool
	wg      sync.WaitGroup     // of writers and watchLife
	ahead   sync.WaitGroup     // of shared
	working context.Context    // of watchLife
	stop    context.CancelFunc // of working
}

// AsideConns are the connections of a log beside its pool: for the tenants whose new origins are numbered, and one for other uses.
// All but one are closed when they are idle: new origins are rare.
const AsideConns = origins.MaxNumbering + 1

const asideIdle = 30 * time.Second

// New raises the epoch if the server is in another life, then starts the writers. Close ends them.
func New(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Log, error) {
	// Origins are recorded and epochs raised while a caller holds a connection of the pool:
	// with connections of their own, no caller waits for itself.
	aside := pool.Config().Copy()
	aside.MinConns, aside.MaxConns, aside.MaxConnIdleTime = 0, AsideConns, asideIdle
	own, err := pgxpool.NewWithConfig(ctx, aside)
	if err != nil {
		return nil, fmt.Errorf("opening a connection for origins and epochs: %w", err)
	}
	l := On(server.Of(pool), own, cfg)
	l.closeAside = own.Close
	if l.id, err = readLogID(ctx, own); err == nil {
		l.LogID = l.id
		err = l.startEpoch(ctx)
	}
	if err != nil {
		own.Close()
		return nil, err
	}
	l.Start()
	return l, nil
}

// On returns a log on a database, before Start. New calls it with PostgreSQL, the simulation with
// its own database. While a caller holds a connection of db, aside must have another one.
func On(db server.Database, aside postgres.Pool, cfg Config) *Log {
	if cfg.Writers == 0 {
		cfg.Writers = 4
	}
	cfg.Region = cmp.Or(cfg.Region, events.ResidencyUnspecified)
	if cfg.HotReads == nil {
		cfg.HotReads = db
	}
	if cfg.OnAppend == nil {
		cfg.OnAppend = func([]int16) {}
	}
	if cfg.OnInMemory == nil {
		cfg.OnInMemory = cfg.OnAppend
	}
	if cfg.OnRaised == nil {
		cfg.OnRaised = func([]Raised) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	known := origins.New(aside, cfg.Producer, cfg.Region, cfg.Logger)
	return &Log{
		Reader: &reads.Reader{DB: db, HotReads: cfg.HotReads, Origins: known},
		cfg:    cfg, db: db, aside: aside, closeAside: func() {}, newLife: loop.NewHint(),
		origins: known,
	}
}

// Start starts the writers. Close ends them.
func (l *Log) Start() {
	l.working, l.stop = context.WithCancel(context.Background())
	l.wg.Go(func() { l.watchLife(l.working) })
	for range l.cfg.Writers {
		w := newWriter(l, false)
		l.writers = append(l.writers, w)
		l.wg.Go(w.run)
	}
	l.shared = newWriter(l, true)
	l.ahead.Go(l.shared.run)
}

// Close rejects new submissions, finishes the accepted ones, and returns.
func (l *Log) Close() {
	l.mu.Lock()
	already := l.closed
	l.closed = true
	l.mu.Unlock()
	if !already {
		l.stop()
		l.origins.Close()
		close(l.shared.queue)
		l.ahead.Wait() // it passes on to the writers
		for _, w := range l.writers {
			close(w.queue)
		}
	}
	l.wg.Wait()
	l.closeAside()
}

// now is the server's time as the log keeps it: microseconds, UTC.
func (l *Log) now() time.Time { return l.cfg.Now().UTC().Truncate(time.Microsecond) }

// AppendTx appends inside the caller's transaction, which holds checkpoints but no heads
// yet: AppendTx locks the heads, ascending, and they stay locked until the caller
// commits. If an event's key is in the log already, the recorded event stays, and
// AppendTx returns its position. It fails if the server is in another life than the
// epoch; the caller rolls back, the epoch is raised meanwhile, and the caller tries again.
func (l *Log) AppendTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, error) {
	positions, _, err := l.appendAtOnce(ctx, tx, pending)
	return positions, err
}

// Append is AppendTx in a transaction that knows its heads. They are not locked again, and are moved by a queued statement.
func (l *Log) Append(ctx context.Context, tx *Tx, pending []events.Pending) ([]events.Position, error) {
	positions, _, err := l.appendTx(ctx, tx, pending)
	return positions, err
}

// AppendEventsTx is AppendTx, and returns the events that it appended, without those that are in
// the log already.
func (l *Log) AppendEventsTx(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Envelope, error) {
	_, rows, err := l.appendAtOnce(ctx, tx, pending)
	if err != nil {
		return nil, err
	}
	list := make([]events.Envelope, len(rows))
	for i := range rows {
		list[i] = l.envelope(&rows[i])
	}
	return list, nil
}

func (l *Log) appendAtOnce(ctx context.Context, tx pgx.Tx, pending []events.Pending) ([]events.Position, []server.Row, error) {
	t := In(tx)
	positions, rows, err := l.appendTx(ctx, t, pending)
	if err == nil {
		err = t.Flush(ctx)
	}
	return positions, rows, err
}

func (l *Log) appendTx(ctx context.Context, tx *Tx, pending []events.Pending) ([]events.Position, []server.Row, error) {
	if len(pending) == 0 {
		return nil, nil, nil
	}
	began := time.Now()
	list, era := pointers(pending), l.origins.Era()
	origin, err := l.originsOf(ctx, list)
	if err != nil {
		return nil, nil, err
	}
	reading, watchers := readingWatchers(list)
	hs, err := tx.lock(ctx, partitionsOf(list), reading, readingArchived(list))
	if err == nil {
		err = l.inNewLife(hs)
	}
	if l.sawEpochs(hs); err == nil && l.origins.Era() != era {
		origin, err = l.originsOf(ctx, list)
	}
	if err != nil {
		return nil, nil, err
	}
	watching, err := watchers.Watched(ctx, tx)
	if err == nil {
		err = tx.Flush(ctx) // a queued statement would fail after an append that fails
	}
	if err != nil {
		return nil, nil, err
	}
	before := hs.clone()
	positions, rows, err := l.tryAppend(ctx, tx, hs, list, origin, nil, watching)
	if postgres.SQLState(err) != postgres.UniqueViolation {
		l.written(rows)
		l.appended(ctx, began, rows)
		return positions, rows, err
	}
	if _, err := tx.Exec(ctx, planAnewSQL); err != nil { // also where the session keeps plans
		return nil, nil, fmt.Errorf("plan the statement again: %w", err)
	}
	known, err := dedupe.Probe(ctx, tx, list)
	if err != nil {
		return nil, nil, err
	}
	positions, rows, err = l.tryAppend(ctx, tx, before, list, origin, known, watching)
	l.written(rows)
	l.appended(ctx, began, rows)
	return positions, rows, err
}

func pointers[T any](list []T) []*T {
	to := make([]*T, len(list))
	for i := range list {
		to[i] = &list[i]
	}
	return to
}

const (
	goBackSQL  = `ROLLBACK TO SAVEPOINT append`
	releaseSQL = `RELEASE SAVEPOINT append`
)

// tryAppend writes the events that are not known yet, and the crossings of their account changes, after a savepoint, then the heads.
func (l *Log) tryAppend(ctx context.Context, tx *Tx, hs heads, pending []*events.Pending, origin []int32, known map[dedupe.Key]dedupe.Found,
	watching *crossings.Watched) ([]events.Position, []server.Row, error) {
	positions := make([]events.Position, len(pending))
	seen := make(map[dedupe.Key]events.Position, len(pending))
	rows := make([]server.Row, 0, len(pending))
	sequence := sequencer{heads: hs, now: l.now()}
	for i := range pending {
		key := dedupe.KeyOf(pending[i])
		if f, ok := known[key]; ok {
			positions[i] = f.Position
		} else if at, ok := seen[key]; ok {
			positions[i] = at
		} else {
			r := sequence.next(pending[i], origin[i])
			positions[i], seen[key] = r.Position, r.Position
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return positions, nil, nil
	}
	rows, err := appendCrossings(ctx, tx, watching, &sequence, rows, l.cfg.NewID)
	if err != nil {
		return nil, nil, err
	}
	if err := l.db.Copy(ctx, tx.Tx, server.NewRows(rows)); err != nil {
		if _, backErr := tx.Exec(ctx, goBackSQL); backErr != nil {
			err = errors.Join(err, backErr)
		}
		return nil, nil, err
	}
	tx.Queue("releasing a savepoint", releaseSQL)
	tx.Queue("moving heads", updateHeadsSQL, hs.updateArgs()...)
	for _, c := range tables.Changes(rows) {
		tx.Queue(c.Name, c.SQL, c.Args...)
	}
	tx.moved(hs)
	return positions, rows, nil
}

// sawEpochs notes the epochs of locked heads.
func (l *Log) sawEpochs(hs heads) {
	for p, h := range hs {
		l.origins.InEpoch(p, h.epoch)
	}
}

// originsOf returns the number of the origin of each event.
func (l *Log) originsOf(ctx context.Context, pending []*events.Pending) ([]int32, error) {
	return l.origins.Numbers(ctx, len(pending), func(i int) *events.Pending { return pending[i] })
}

// Appended reports that a caller's transaction with these events in it has committed.
func (l *Log) Appended(pending []events.Pending) { l.cfg.OnAppend(partitionsOf(pointers(pending))) }

func (hs heads) clone() heads {
	c := make(heads, len(hs))
	for p, h := range hs {
		copied := *h
		copied.topics = slices.Clone(h.topics)
		c[p] = &copied
	}
	return c
}
