// Package store keeps the tables of the write side in PostgreSQL: the catalogue, keys, rebuilds,
// replays, sagas and closed periods. Each change is recorded in the event log by the same transaction.
package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/seats"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/projections"
)

// Config says how a store caches.
type Config struct {
	Now func() time.Time // nil: time.Now
	// Catalogue, if set, saves repeated reads of keys and subscriptions.
	Catalogue CatalogueSeen
	// Admission returns the admission of a context's request; the zero value without a request. Nil: no change has a key.
	Admission func(context.Context) commands.Admission
	// Connections is the size of the pool, if it is a small one.
	Connections int
}

// Store changes the tables of the write side, each change together with its events. It implements
// the stores of commands.
type Store struct {
	// Keys and Histories forget a tenant as soon as a change of its catalogue is committed here.
	Keys      *Keys
	Histories *HistoryCache

	log        *eventlog.Log
	pool       postgres.Pool
	changes    *seats.Seats
	admission  func(context.Context) commands.Admission
	deliveries limited // of transactions of webhooks' deliveries
	periods    paced   // changes of periods, of which many are requested at once
}

var (
	_ commands.Store            = (*Store)(nil)
	_ catalogue.Store           = (*Store)(nil)
	_ repair.DeadLetterStore    = (*Store)(nil)
	_ metering.ReservationTable = (*Store)(nil)
)

// New returns a store whose changes are recorded in a log of the same database.
func New(pool postgres.Pool, log *eventlog.Log, cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Catalogue == nil {
		cfg.Catalogue = func(time.Duration) *projections.CatalogueMarks { return nil }
	}
	if cfg.Admission == nil {
		cfg.Admission = func(context.Context) commands.Admission { return commands.Admission{} }
	}
	loads := make(limited, cfg.share(maxLoads)) // of keys and histories
	changes := cfg.share(maxChanges)
	return &Store{
		log: log, pool: pool, admission: cfg.Admission, deliveries: make(limited, maxDeliveries), periods: paced{make(limited, 1)},
		changes: seats.New(seats.Config{All: changes, Operators: changes - 1, Patience: patience}),
		Keys:    newKeys(pool, cfg.Now, cfg.Catalogue, loads), Histories: newHistoryCache(pool, cfg.Now, cfg.Catalogue, loads),
	}
}

// Change implements commands.Store. If COMMIT is not answered, Change looks up the
// change's own events under the head's lock, to find the outcome.
func (s *Store) Change(ctx context.Context, tenant uuid.UUID, decide func(commands.Tx) error) error {
	return s.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(tx) })
}

// ChangeCatalogue implements catalogue.Store, as Change does. It forgets the tenant's
// cached state also if the change saves no row: a repetition answers a change that another
// instance may have made.
func (s *Store) ChangeCatalogue(ctx context.Context, tenant uuid.UUID, decide func(catalogue.Tx) error) error {
	return s.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(tx) }, tenant)
}

// ChangeDeadLetters implements repair.DeadLetterStore, as Change does.
func (s *Store) ChangeDeadLetters(ctx context.Context, tenant uuid.UUID, decide func(repair.DeadLetterTx) error) error {
	return s.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(tx) })
}

// ChangeTenant runs a change of a tenant under the lock of its head. It forgets the cached state of the concerned tenants.
func (s *Store) ChangeTenant(ctx context.Context, tenant uuid.UUID, decide func(*Tx) error, concerned ...uuid.UUID) error {
	hold := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		return s.log.LockHeads(ctx, t, []int16{events.PartitionOf(tenant)}, admitted)
	}
	return s.ChangeUnder(ctx, tenant, hold, decide, concerned...)
}

// ChangeUnder is ChangeTenant under the locks that hold takes.
func (s *Store) ChangeUnder(ctx context.Context, tenant uuid.UUID, hold Holding, decide func(*Tx) error, concerned ...uuid.UUID) error {
	tx := &Tx{log: s.log, ctx: ctx, partition: events.PartitionOf(tenant), concerned: concerned}
	return s.changing(ctx, tx, hold, decide)
}

// PeriodSeat waits for a seat of a change of periods, of which many are requested at once.
func (s *Store) PeriodSeat(ctx context.Context) (leave func(), err error) {
	return s.periods.acquire(ctx)
}

// Log is the log of the changes.
func (s *Store) Log() *eventlog.Log { return s.log }

// Pool runs statements that are no change: they record no event.
func (s *Store) Pool() postgres.Pool { return s.pool }

// Holding takes the locks of a change, and reads behind them whether its caller is still admitted.
type Holding func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error

// changing runs a change. It runs it once more if the same Idempotency-Key was used
// concurrently under other locks: that change is committed, so its answer is visible now.
func (s *Store) changing(ctx context.Context, tx *Tx, hold Holding, decide func(*Tx) error) error {
	attempt := func() error {
		tx.appended = nil
		return s.changeHolding(ctx, tx, hold, decide)
	}
	err := s.log.InServerLife(ctx, attempt)
	if answeredMeanwhile(err) {
		err = attempt()
	}
	return s.changed(tx, err)
}

// answeredMeanwhile reports whether an Idempotency-Key was answered after its look-up.
func answeredMeanwhile(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == postgres.UniqueViolation && pg.ConstraintName == "idempotency_answers_pkey"
}

// changed invalidates caches and notifies after a successful change. For an unanswered
// commit it first resolves the outcome.
func (s *Store) changed(tx *Tx, err error) error {
	unanswered := errors.Is(err, postgres.ErrCommitUnknown)
	if unanswered && len(tx.appended) > 0 {
		err = s.log.Resolve(&tx.appended[0])
	}
	if (err == nil || unanswered) && len(tx.concerned) > 0 {
		s.Histories.forget(tx.concerned...)
		s.Keys.forget(tx.concerned...)
	}
	if err == nil {
		if len(tx.appended) > 0 {
			s.log.Appended(tx.appended)
		}
		return nil
	}
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		return refusal
	}
	return Unavailable(err)
}

// changeHolding runs decide in a transaction, after hold has taken its locks. A change by a key of a tenant that waits long for them loses
// its seat to another tenant, until it commits.
func (s *Store) changeHolding(ctx context.Context, tx *Tx, hold Holding, decide func(*Tx) error) error {
	admission := s.admission(ctx)
	seated, leave, err := s.changes.Acquire(ctx, admission.TenantID, false)
	if err != nil {
		return unseated(ctx, err)
	}
	defer leave()
	ctx, tx.ctx = seated, seated
	err = postgres.InTx(ctx, s.pool, func(t pgx.Tx) error {
		tx.tx = eventlog.In(t)
		if err := hold(ctx, tx.tx, s.log.StillAdmitted(admission)); err != nil {
			return err
		}
		if err := decide(tx); err != nil {
			return err
		}
		return tx.tx.Flush(ctx)
	})
	if err != nil && !errors.Is(err, postgres.ErrCommitUnknown) {
		err = unseated(ctx, err)
	}
	return err
}

// Tx is a change: the transactions of the nouns embed it. Its context is that of the one change it serves.
type Tx struct {
	log       *eventlog.Log
	ctx       context.Context
	tx        *eventlog.Tx
	partition int16
	appended  []events.Pending
	concerned []uuid.UUID // the tenants whose keys, status and subscriptions it may have changed
}

// Context is that of the change.
func (t *Tx) Context() context.Context { return t.ctx }

// DB is the transaction in the database.
func (t *Tx) DB() *eventlog.Tx { return t.tx }

// concerns notes a tenant whose cached state the change makes outdated.
func (t *Tx) concerns(tenant uuid.UUID) {
	if !slices.Contains(t.concerned, tenant) {
		t.concerned = append(t.concerned, tenant)
	}
}

// Queue queues a write, or a lock: both come before all later reads. An error is that of the read, or of the change.
func (t *Tx) Queue(what, sql string, args ...any) {
	t.tx.Queue("keeping a "+what, sql, args...)
}

// Exec is Queue, as the last statement of a method.
func (t *Tx) Exec(what, sql string, args ...any) error {
	t.Queue(what, sql, args...)
	return nil
}

// DatabaseTime implements commands.DatabaseClock.
func (t *Tx) DatabaseTime() (now time.Time, err error) {
	if err := t.tx.QueryRow(t.ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return now, fmt.Errorf("reading the time: %w", err)
	}
	return now, nil
}

// Append implements commands.Appender. The events change the rows of their nouns.
func (t *Tx) Append(list ...events.Pending) ([]events.Position, error) {
	positions, err := t.log.Append(t.ctx, t.tx, list)
	if err != nil {
		return positions, err
	}
	t.appended = append(t.appended, list...)
	for i := range list {
		t.fold(&list[i], positions[i])
	}
	return positions, nil
}

// Answer reads an answer under the platform's id: the key names its holder already.
func (t *Tx) Answer(key string) (*commands.Answer, error) {
	return Find(t.ctx, t.tx, func(row pgx.CollectableRow) (a commands.Answer, err error) {
		var hash []byte
		err = row.Scan(&hash, &a.Body)
		copy(a.RequestHash[:], hash)
		return a, err
	}, `SELECT request_hash, body FROM idempotency_answers WHERE tenant_id = $1 AND key = $2`, uuid.Nil, key)
}

func (t *Tx) SaveAnswer(key string, a commands.Answer) error {
	return t.Exec("answer", `INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at) VALUES ($1, $2, $3, 0,
		$4, now())`,
		uuid.Nil, key, a.RequestHash[:], a.Body)
}

const tenantSQL = `SELECT ` + tenantColumns + ` FROM tenants WHERE id = $1`

// ReadTenant returns the read of a tenant behind the locks of the heads; an unknown one is nil.
func ReadTenant(id uuid.UUID, into **domain.Tenant) *eventlog.LockedRead {
	return &eventlog.LockedRead{Statement: server.Statement{SQL: tenantSQL, Args: []any{id}}, Scan: func(rows pgx.Rows) (err error) {
		*into, err = firstRow(rows, pgx.RowToStructByName[domain.Tenant])
		return err
	}}
}

func (t *Tx) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Tenant], tenantSQL, id)
}

// SaveExternalIDs locks the table, so that changes which exchange ids do not deadlock and the look-up sees every id.
// The unique index would refuse an id that the look-up missed.
func (t *Tx) SaveExternalIDs(tenant uuid.UUID, ids []string) (taken string, err error) {
	const others = `SELECT coalesce((SELECT external_id FROM tenant_external_ids WHERE external_id = ANY ($1) AND tenant_id <> $2
		ORDER BY external_id LIMIT 1), '')`
	t.Queue("lock on external ids", `LOCK TABLE tenant_external_ids IN SHARE ROW EXCLUSIVE MODE`)
	if err := t.tx.QueryRow(t.ctx, others, ids, tenant).Scan(&taken); err != nil || taken != "" {
		return taken, err
	}
	for _, change := range []string{
		`DELETE FROM tenant_external_ids WHERE tenant_id = $1 AND external_id <> ALL (coalesce($2::text[], '{}'))`,
		`INSERT INTO tenant_external_ids (tenant_id, external_id) SELECT $1, unnest($2::text[]) EXCEPT SELECT tenant_id, external_id
			FROM tenant_external_ids WHERE tenant_id = $1`,
	} {
		t.Queue("tenant's external ids", change, tenant, ids)
	}
	return "", nil
}

func (t *Tx) Key(id uuid.UUID) (*domain.APIKey, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.APIKey], `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id)
}

// UsableKeys implements offboarding.Tx.
func (t *Tx) UsableKeys(tenant uuid.UUID) ([]domain.APIKey, error) {
	return FindAll(t.ctx, t.tx, "reading keys", pgx.RowToStructByName[domain.APIKey], `SELECT `+keyColumns+
		` FROM api_keys WHERE tenant_id = $1 AND NOT ended AND (revoked_at IS NULL OR revoked_at > now()) ORDER BY id`, tenant)
}

func (t *Tx) SaveSecret(key uuid.UUID, hash []byte) error {
	return t.Exec("key", `UPDATE api_keys SET secret_hash = $2 WHERE id = $1`, key, hash)
}

func (t *Tx) Feature(lookupKey string) (*domain.Feature, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Feature], featureSQL, lookupKey)
}

// GroupingSince returns a time after all usage that is recorded, whose time may be of a server with another
// clock, and after the groupings before it.
func (t *Tx) GroupingSince(feature string, since time.Time) (time.Time, error) {
	const sql = `SELECT greatest($2::timestamptz, (SELECT max(recorded_at) FROM log_heads) + $3::interval,
 (SELECT max(since) FROM feature_groupings WHERE feature = $1) + interval '1 microsecond')`
	if err := t.tx.QueryRow(t.ctx, sql, feature, since, domain.GroupingDelay).Scan(&since); err != nil {
		return since, fmt.Errorf("reading the time of a grouping: %w", err)
	}
	return since, nil
}

func (t *Tx) Plan(key string) (*domain.Plan, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Plan], planSQL, key)
}

// Price implements catalogue.Tx.
func (t *Tx) Price(key string) (*domain.Price, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Price], priceSQL, key)
}

func (t *Tx) Subscription(id uuid.UUID) (*domain.Subscription, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Subscription], `SELECT `+subscriptionColumns+` FROM subscriptions WHERE id = $1`,
		id)
}

func (t *Tx) InForce(tenant uuid.UUID) (*domain.Subscription, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[domain.Subscription],
		`SELECT `+subscriptionColumns+` FROM subscriptions WHERE tenant_id = $1 AND status IN ('ACTIVE', 'TRIALING')`, tenant)
}

// Querier is a transaction or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ReadHead reads the end of a partition, and the epoch of then.
func ReadHead(ctx context.Context, from Querier, partition int16) (repair.FoldedTo, error) {
	head := repair.FoldedTo{Position: events.Position{Partition: partition}}
	if err := from.QueryRow(ctx, `SELECT position, epoch FROM log_heads WHERE partition = $1`, partition).Scan(&head.Number,
		&head.Epoch); err != nil {
		return head, fmt.Errorf("reading a head: %w", err)
	}
	return head, nil
}

// Epoch implements commands.LogEpochs.
func (t *Tx) Epoch(tenant uuid.UUID) (int32, error) {
	head, err := ReadHead(t.ctx, t.tx, events.PartitionOf(tenant))
	return head.Epoch, err
}
