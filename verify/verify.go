// Package verify checks the promises of the service from outside: it reads the log, the tables and the topics.
// It has its own SQL, decoding and names, so that it does not repeat the service's bugs: the module
// imports no package of the service. checks.go lists the checks; each has a file with its name.
//
// It only reads: each partition once, in order, in its own snapshot. Its memory is about 10 bytes for each
// row of the largest partition, 300 bytes for each reservation of the last days, and 300 for each
// corrected event and each adjustment, and 150 for each event that a webhook of its tenant can select.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config selects the checks. Checks without their settings are skipped.
type Config struct {
	DatabaseURL string
	Kafka       []kgo.Opt // how to reach the brokers; empty: the topics are skipped
	NoTopics    string    // the reason, if Kafka is empty
	TopicPrefix string
	Partitions  []int16       // empty: all
	Watch       time.Duration // at least this long between the two observations of unchanging state
	Idle        time.Duration // how long a session may pause in a transaction
	Progress    func(text string)
	Now         func() time.Time
}

// Check is the result of one check: a line of the output.
type Check struct {
	Name    string `json:"check"`
	Holds   *bool  `json:"holds"` // null: not determined, or skipped
	Figures string `json:"figures"`
	Looked  bool   `json:"looked"`
	Needs   string `json:"needs"` // http, database, or topics
}

// partitions is the log's number of partitions, which never changes.
const partitions = 32

// Run runs every check that its settings allow. Its error reports that it was stopped early.
func Run(ctx context.Context, cfg Config) ([]Check, error) {
	r := newReport()
	cfg.Partitions = distinct(cfg.Partitions)
	if cfg.DatabaseURL == "" {
		r.skip("set DATABASE_URL", r.all...)
		return r.list(), nil
	}
	if len(cfg.Kafka) == 0 {
		r.skip(cfg.NoTopics, r.of(perTopic)...)
	}
	v := &verifier{Config: cfg, report: r}
	if err := v.runChecks(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("stopped: %w", err)
		}
		r.unknown(err)
	}
	return r.list(), nil
}

// distinct returns the partitions asked for without duplicates, in order; all if the list is empty.
func distinct(list []int16) []int16 {
	if len(list) == 0 {
		for p := range int16(partitions) {
			list = append(list, p)
		}
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// verifier is one run.
type verifier struct {
	Config
	*report
	log      *pgx.Conn // reads all tenants' rows
	login    *pgx.Conn // the login itself, which alone sees the state of its sessions
	broker   topicSource
	reported time.Time
}

func (v *verifier) runChecks(ctx context.Context) (err error) {
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
	before, began := new(observation), v.Now()
	if err := before.observe(ctx, v, nil); err != nil {
		return err
	}
	for n, p := range v.Config.Partitions {
		v.progress("partition %d (%d of %d): %d events read", p, n+1, len(v.Config.Partitions), v.positions.n)
		if err := v.partition(ctx, p, before); err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
	}
	v.read()
	for _, c := range v.all {
		if c.whole != nil {
			if err := c.whole(v, ctx); err != nil {
				return err
			}
		}
	}
	return v.watch(ctx, before, v.Watch-v.Now().Sub(began))
}

// progressEvery limits the progress messages.
const progressEvery = time.Second

// progress reports the progress, at most once in progressEvery.
func (v *verifier) progress(format string, args ...any) {
	if now := v.Now(); now.Sub(v.reported) >= progressEvery {
		v.reported = now
		v.Progress(fmt.Sprintf(format, args...))
	}
}

// watch observes a second time the state that must not have changed, and the sessions and
// leases; a lease may be between two holders for a moment.
func (v *verifier) watch(ctx context.Context, before *observation, left time.Duration) error {
	if left > 0 {
		v.Progress(fmt.Sprintf("watching for changes for %s", left.Round(100*time.Millisecond)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		}
	}
	after := new(observation)
	if err := after.observe(ctx, v, before); err != nil {
		return err
	}
	for _, c := range v.all {
		if c.watch != nil {
			if err := c.watch(v, ctx, before, after); err != nil {
				return err
			}
		}
	}
	return nil
}

var errBlind = errors.New("the login of DATABASE_URL is neither a member of meterplex_worker nor a superuser: row level security hides " +
	"every tenant's rows from it. Use the service's own DATABASE_URL, or GRANT meterplex_worker TO it (from PostgreSQL 16 on WITH SET TRUE)")

const whoSQL = `SELECT to_regclass('public.event_log') IS NOT NULL, EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex_worker')
 AND pg_has_role(current_user, (SELECT oid FROM pg_roles WHERE rolname = 'meterplex_worker'),
  CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END),
 (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)`

// connect opens two read-only sessions. The worker's role sees all tenants' rows, since its
// policies are true; so does a superuser that is no member of it.
func (v *verifier) connect(ctx context.Context) error {
	cc, err := pgx.ParseConfig(v.DatabaseURL)
	if err != nil {
		return errors.New("DATABASE_URL is invalid")
	}
	cc.RuntimeParams["application_name"] = "verify"
	cc.RuntimeParams["timezone"] = "UTC"
	// Set later: among several hosts the driver looks for one that accepts writes, if the address says so.
	cc.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		return c.Exec(ctx, `SET default_transaction_read_only = on`).Close()
	}
	if v.login, err = pgx.ConnectConfig(ctx, cc); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	var there, worker, sees bool
	err = v.login.QueryRow(ctx, whoSQL).Scan(&there, &worker, &sees)
	switch {
	case err == nil && !there:
		err = errors.New("the database of DATABASE_URL has no event log")
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
		return fmt.Errorf("check the database: %w", err)
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

// snapshot runs do in one snapshot of the database.
func (v *verifier) snapshot(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, v.log, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, do)
}

// each runs a query and calls do for each of its rows.
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
