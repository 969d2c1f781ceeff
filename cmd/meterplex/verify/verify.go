// Package verify proves from outside, on a running service, what the log, the
// tables and the topics promise. It is written apart from the service: plain SQL
// and decoding of its own, so that a fault of the service's code is not repeated
// here. Of the service it uses the registries of subjects, topics and consumers (package
// events) and the canonical form of a payload (package domain) for the hashes
// of conflicts.
//
// It only reads. Each partition is read through once, in its order, in a snapshot
// of its own, so that what it takes of memory follows the largest partition by some
// bytes for a row, and no snapshot is older than that takes.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what is looked at. What is not given is not looked at.
type Config struct {
	DatabaseURL string
	Kafka       []kgo.Opt // how to reach the brokers; none: the topics are not looked at
	NoTopics    string    // why they are not, where Kafka is empty
	TopicPrefix string
	Partitions  []int16       // none: all
	Watch       time.Duration // at least this long between the two looks at what must not change
	Idle        time.Duration // how long a session may pause in a transaction
	Progress    func(text string)
	Now         func() time.Time
}

// Check is a promise and whether it holds.
type Check struct {
	Name    string `json:"check"`
	Holds   *bool  `json:"holds"` // null: it could not be told, or was not looked at
	Figures string `json:"figures"`
	Looked  bool   `json:"looked"`
	Needs   string `json:"needs"` // http, database, or topics
}

// partitions is how many the log has, for ever.
const partitions = 32

// Run looks at everything that it can reach. Its error says that it was ended early.
func Run(ctx context.Context, cfg Config) ([]Check, error) {
	r := newReport()
	cfg.Partitions = once(cfg.Partitions)
	if cfg.DatabaseURL == "" {
		r.skip("set DATABASE_URL", r.all...)
		return r.list(), nil
	}
	if len(cfg.Kafka) == 0 {
		r.skip(cfg.NoTopics, r.topics, r.bytes, r.first)
	}
	v := &verifier{Config: cfg, report: r}
	if err := v.look(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("stopped: %w", err)
		}
		r.unknown(err)
	}
	return r.list(), nil
}

// once is each partition that was asked for once, in their order; all, where none was.
func once(asked []int16) []int16 {
	if len(asked) == 0 {
		for p := range int16(partitions) {
			asked = append(asked, p)
		}
	}
	asked = slices.Clone(asked)
	slices.Sort(asked)
	return slices.Compact(asked)
}

// verifier is a run.
type verifier struct {
	Config
	*report
	log    *pgx.Conn // reads all tenants' rows
	login  *pgx.Conn // the login itself, for what only it is told of its sessions
	broker topicSource
	told   time.Time
}

func (v *verifier) look(ctx context.Context) (err error) {
	if err := v.connect(ctx); err != nil {
		return err
	}
	defer v.close()
	if len(v.Kafka) > 0 {
		b := &broker{opts: v.Kafka, prefix: v.TopicPrefix}
		defer b.close()
		if err := b.open(ctx); err != nil {
			v.noTopics(err)
		} else {
			v.broker = b
		}
	}
	before, began := new(look), v.Now()
	if err := before.take(ctx, v, nil); err != nil {
		return err
	}
	for n, p := range v.Config.Partitions {
		v.tell("partition %d (%d of %d): %d events read", p, n+1, len(v.Config.Partitions), v.dense.n)
		if err := v.partition(ctx, p, before); err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
	}
	v.read()
	for _, whole := range []func(context.Context) error{v.generations, v.rowSecurity, v.rights} {
		if err := whole(ctx); err != nil {
			return err
		}
	}
	return v.watch(ctx, before, v.Watch-v.Now().Sub(began))
}

// tellEvery keeps what is quick quiet.
const tellEvery = time.Second

// tell says how far it is, now and then.
func (v *verifier) tell(format string, args ...any) {
	if now := v.Now(); now.Sub(v.told) >= tellEvery {
		v.told = now
		v.Progress(fmt.Sprintf(format, args...))
	}
}

// watch looks a second time at what must not have changed, and at sessions and
// leases, which may be between two holders for a moment.
func (v *verifier) watch(ctx context.Context, before *look, left time.Duration) error {
	if left > 0 {
		v.Progress(fmt.Sprintf("watching for %s what must not change", left.Round(100*time.Millisecond)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		}
	}
	after := new(look)
	if err := after.take(ctx, v, before); err != nil {
		return err
	}
	v.unchanged(before, after)
	v.leases(before, after)
	return v.sessions(ctx)
}

var errBlind = errors.New("the login of DATABASE_URL may not act as meterplex_worker and is no superuser: row level security hides every tenant's rows from it. Give the service's own DATABASE_URL, or GRANT meterplex_worker TO it (from PostgreSQL 16 on WITH SET TRUE)")

const whoSQL = `SELECT to_regclass('public.event_log') IS NOT NULL, EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex_worker')
 AND pg_has_role(current_user, (SELECT oid FROM pg_roles WHERE rolname = 'meterplex_worker'),
  CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END),
 (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)`

// connect opens two read-only sessions. The role that sees all tenants' rows is the
// worker's, whose policies are true; a superuser who is no member sees them, too.
func (v *verifier) connect(ctx context.Context) error {
	cc, err := pgx.ParseConfig(v.DatabaseURL)
	if err != nil {
		return errors.New("DATABASE_URL cannot be read")
	}
	cc.RuntimeParams["application_name"] = "verify"
	cc.RuntimeParams["default_transaction_read_only"] = "on"
	cc.RuntimeParams["timezone"] = "UTC"
	if v.login, err = pgx.ConnectConfig(ctx, cc); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	var there, worker, sees bool
	err = v.login.QueryRow(ctx, whoSQL).Scan(&there, &worker, &sees)
	switch {
	case err == nil && !there:
		err = errors.New("the database of DATABASE_URL holds no event log")
	case err == nil && !worker && !sees:
		err = errBlind
	case err == nil && worker:
		cc.RuntimeParams["role"] = "meterplex_worker"
	}
	if err == nil {
		v.log, err = pgx.ConnectConfig(ctx, cc)
	}
	if err != nil {
		v.close()
		return fmt.Errorf("look into the database: %w", err)
	}
	return nil
}

func (v *verifier) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, c := range []*pgx.Conn{v.login, v.log} {
		if c != nil {
			_ = c.Close(ctx)
		}
	}
}

// snapshot runs what sees one moment of the database.
func (v *verifier) snapshot(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, v.log, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, do)
}

// each runs a query and a function for each of its rows.
func each(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args []any, into []any, do func() error) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, do)
	return err
}
