// Package projectionstest has the fixtures of the tests of projections: a database with a log, its consumers and reads, rebuilds, dead
// letters, and histories of a tenant. Tests import it under the name `.`: its functions are the words in which they write histories. It is
// for tests only, and has no assertion that only one package needs.
package projectionstest

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/recent"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/repairs"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// Database is a migrated database with the log in it.
type Database struct {
	testing.TB
	URL      string
	Pool     *pgxpool.Pool
	EventLog *eventlog.Log
	Store    *store.Store
	// recent holds the newest events if a consumer is reading the log.
	recent  *recent.Cache
	reading bool
	// payloads compares the payloads that are written and applied with their schemas.
	Payloads localtest.Payloads
}

// NewDatabase makes a database for a test.
func NewDatabase(t testing.TB) *Database {
	t.Helper()
	w := &Database{TB: t, URL: localtest.Migrated(t, postgres.Migrate)}
	config, err := postgres.PoolConfig(postgres.Config{URL: w.URL, ApplicationName: "test"})
	w.Must(err)
	w.Pool, err = localtest.KeepSessions(config)
	w.Must(err)
	t.Cleanup(w.Pool.Close)
	w.Payloads = localtest.CheckPayloads(t)
	w.recent = recent.New()
	w.EventLog, err = eventlog.New(t.Context(), w.Pool,
		eventlog.Config{Producer: events.Producer{Service: "test", Instance: "1", Commit: "0"}, Written: w.Payloads.Written,
			Recent: w.recent})
	w.Must(err)
	t.Cleanup(w.EventLog.Close)
	w.Store = store.New(w.Pool, w.EventLog, store.Config{})
	return w
}

// Until waits for a condition; go test's own time limit is the only one.
func (w *Database) Until(done func() bool) {
	w.Helper()
	for !done() {
		time.Sleep(2 * time.Millisecond)
	}
}

// LockWaiters counts the sessions of the database that wait for another's lock.
func (w *Database) LockWaiters() (n int) {
	w.Helper()
	var name string
	w.Must(w.Pool.QueryRow(context.Background(), `SELECT current_database()`).Scan(&name))
	admin, err := pgx.Connect(context.Background(), localtest.Postgres(w.TB).AdminURL()) // it sees others' lock waits
	w.Must(err)
	defer admin.Close(context.Background())
	w.Must(admin.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'`,
		name).Scan(&n))
	return n
}

func (w *Database) RebuildStore() *repairs.Rebuilds {
	return &repairs.Rebuilds{Store: w.Store, List: models.List(models.DefaultFolds(), nil)}
}

// Must ends the test if there is an error.
func (w *Database) Must(err error) {
	w.Helper()
	must.OK(w, err)
}

// Append stores events in one transaction, and their tenants.
func (w *Database) Append(pending ...events.Pending) []events.Position {
	w.Helper()
	var tenants []uuid.UUID
	for i := range pending {
		if t := pending[i].TenantID; t != events.Platform && !slices.Contains(tenants, t) {
			tenants = append(tenants, t)
		}
	}
	var positions []events.Position
	w.Must(pgx.BeginFunc(context.Background(), w.Pool, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(context.Background(), `INSERT INTO tenants (id, name, class, status, created_at)
 SELECT id, 'T', 'small', 'ACTIVE', now() FROM unnest($1::uuid[]) id ON CONFLICT DO NOTHING`, tenants); err != nil {
			return err
		}
		positions, err = w.EventLog.AppendTx(context.Background(), tx, pending)
		return err
	}))
	w.remember(positions)
	return positions
}

// remember holds appended events for the consumers of the log, as a process does with its own, but not all of them:
// others are as those of another process.
func (w *Database) remember(positions []events.Position) {
	w.Helper()
	if !w.reading {
		return
	}
	type stretch struct{ first, last int64 }
	stretches := map[int16]stretch{}
	for _, p := range positions {
		s, more := stretches[p.Partition]
		if !more {
			s.first = p.Number
		}
		stretches[p.Partition] = stretch{min(s.first, p.Number), max(s.last, p.Number)}
	}
	for partition, s := range stretches {
		list, err := w.EventLog.Read(context.Background(), partition, s.first-1, s.last, 1000)
		w.Must(err)
		list = slices.DeleteFunc(list, func(e events.Envelope) bool { return e.Position.Number%7 == 0 })
		w.recent.Put(Separate(list))
	}
}

// Subscribe adds a tenant's subscription from its partition's head on.
func (w *Database) Subscribe(tenant uuid.UUID, from time.Time, grants ...domain.Grant) domain.Subscription {
	w.Helper()
	s := domain.Subscription{ID: NewID(), TenantID: tenant, Plan: "p", Status: domain.SubscriptionActive,
		Entitlements: append([]domain.Grant{}, grants...), CreatedAt: from}
	w.SubscriptionHistory(tenant, from, &s)
	return s
}

// SubscriptionHistory records a state of a subscription from the partition's head on.
func (w *Database) SubscriptionHistory(tenant uuid.UUID, from time.Time, s *domain.Subscription) {
	w.Helper()
	body, err := json.Marshal(s)
	w.Must(err)
	at := w.Append(events.Pending{EventID: NewID(), Subject: events.SubscriptionCreated, TenantID: tenant,
		DedupeKey: events.KeyEvent(NewID()),
		Actor:     events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: from, Payload: body})[0]
	_, err = w.Pool.Exec(context.Background(), `INSERT INTO subscription_history VALUES ($1, $2, $3, $4)`, tenant, at.Number, from, body)
	w.Must(err)
}

// Topic returns the records that the relay would publish of a topic and partition
// after a position.
func (w *Database) Topic(topic events.Topic, partition int16, after int64) []events.Record {
	w.Helper()
	var records []events.Record
	for i, e := range w.Read(topic, partition, after) {
		r, err := codec.ToRecord(&e)
		w.Must(err)
		r.Offset = int64(i)
		records = append(records, r)
	}
	return records
}

// Read returns the events of a topic and partition after a position; 0: of all topics.
func (w *Database) Read(topic events.Topic, partition int16, after int64) (list []events.Envelope) {
	w.Helper()
	w.Must(pgx.BeginFunc(context.Background(), w.Pool, func(tx pgx.Tx) (err error) {
		list, err = w.EventLog.ReadTx(context.Background(), tx, partition, after, 1<<62, topic, 1<<30)
		return err
	}))
	return list
}

// Checkpoint returns the position of a consumer.
func (w *Database) Checkpoint(consumer string, partition int16) (position int64) {
	w.Helper()
	w.Must(w.Pool.QueryRow(context.Background(), `SELECT position FROM consumer_checkpoints WHERE consumer = $1 AND generation = 1
		AND partition = $2`,
		consumer, partition).Scan(&position))
	return position
}

// Counts are the terms of the identity in a partition's head.
func (w *Database) Counts(partition int16) (c events.Counts) {
	w.Helper()
	w.Must(w.Pool.QueryRow(context.Background(), `SELECT accepted, validated, rejected, parked FROM log_heads WHERE partition = $1`,
		partition).
		Scan(&c.Accepted, &c.Validated, &c.Rejected, &c.Parked))
	return c
}

// Runner returns a runner of a consumer, and its tally.
func (w *Database) Runner(c projections.Consumer) (*consume.Runner, *Tally) {
	seen := &Tally{}
	if c.MaxPerPartition == 0 {
		c.MaxPerPartition = projections.MaxWithFollowUps
	}
	writeTotalsOften(&c)
	r := &consume.Runner{Pool: w.Pool, Log: w.EventLog, Consumer: c, NewID: NewID, Logger: slog.New(slog.DiscardHandler),
		Observe: w.Payloads.Observer(seen), Cache: w.recent}
	if c.Topic == 0 && len(c.Subjects) > 0 {
		r.Recent, w.reading = w.recent.Reader(0, c.Subjects), true
	}
	return r, seen
}

// writeTotalsOften makes the aggregator write running totals in every test, not only of large figures.
func writeTotalsOften(c *projections.Consumer) {
	if h, ok := c.Handler.(*usage.Handler); ok {
		h.TotalsEvery = 3
	}
}

// Validator returns a runner of the validator.
func (w *Database) Validator() (*consume.Runner, *Tally) {
	return w.Runner(validate.Consumer(NewID, new(validate.HistoryReader)))
}

// Aggregator returns a runner of the aggregator, with another handler if one is given.
func (w *Database) Aggregator(handler projections.Handler) (*consume.Runner, *Tally) {
	c := usage.Consumer(NewID, models.DefaultFolds().Usage)
	if handler != nil {
		c.Handler = handler
	}
	return w.Runner(c)
}

// BrokenAggregator returns an aggregator that fails as the features of its verdicts say.
func (w *Database) BrokenAggregator() (*consume.Runner, *Tally) {
	return w.Aggregator(PoisonedHandler{&usage.Handler{Folds: models.DefaultFolds().Usage, NewID: NewID}})
}

// Process delivers records and fails the test if they are not accepted.
func (w *Database) Process(r *consume.Runner, records []events.Record) {
	w.Helper()
	w.Must(r.Process(context.Background(), records))
}

// Aggregate is a row of usage_aggregates.
type Aggregate struct {
	Amount         string
	Count, Applied int64
	Last           time.Time
}

// AggregateKey names a figure.
type AggregateKey struct {
	Tenant             uuid.UUID
	Feature, PeriodKey string
}

// Aggregates returns all figures.
func (w *Database) Aggregates() map[AggregateKey]Aggregate {
	w.Helper()
	rows, err := w.Pool.Query(context.Background(),
		`SELECT tenant_id, feature, period_key, amount::text, event_count, applied_count, last_event_at FROM usage_aggregates`)
	w.Must(err)
	all := map[AggregateKey]Aggregate{}
	var k AggregateKey
	var a Aggregate
	_, err = pgx.ForEachRow(rows, []any{&k.Tenant, &k.Feature, &k.PeriodKey, &a.Amount, &a.Count, &a.Applied, &a.Last}, func() error {
		a.Last = a.Last.UTC()
		all[k] = a
		return nil
	})
	w.Must(err)
	return all
}

// Figure returns a figure of the first generation.
func (w *Database) Figure(tenant uuid.UUID, feature, period string) Aggregate {
	w.Helper()
	return w.Aggregates()[AggregateKey{tenant, feature, period}]
}
