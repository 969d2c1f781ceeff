package projections_test

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
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// logFixture is a migrated database with the log in it.
type logFixture struct {
	testing.TB
	url   string
	pool  *pgxpool.Pool
	log   *eventlog.Log
	store *store.Store
	// recent holds the newest events if a consumer is reading the log.
	recent  *eventlog.Recent
	reading bool
	// payloads compares the payloads that are written and applied with their schemas.
	payloads localtest.Payloads
}

var may = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func newLogFixture(t testing.TB) *logFixture {
	t.Helper()
	w := &logFixture{TB: t, url: localtest.Migrated(t, postgres.Migrate)}
	config, err := postgres.PoolConfig(postgres.Config{URL: w.url, ApplicationName: "test"})
	w.must(err)
	w.pool, err = localtest.KeepSessions(config)
	w.must(err)
	t.Cleanup(w.pool.Close)
	w.payloads = localtest.CheckPayloads(t)
	w.recent = eventlog.NewRecent()
	w.log, err = eventlog.New(t.Context(), w.pool, eventlog.Config{Producer: events.Producer{Service: "test", Instance: "1", Commit: "0"}, Written: w.payloads.Written, Recent: w.recent})
	w.must(err)
	t.Cleanup(w.log.Close)
	w.store = store.New(w.pool, w.log, store.Config{})
	return w
}

func (w *logFixture) rebuildStore() *store.Rebuilds {
	return &store.Rebuilds{Store: w.store, List: models.List(models.DefaultFolds(), nil)}
}

func (w *logFixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// append stores events in one transaction, and their tenants.
func (w *logFixture) append(pending ...events.Pending) []events.Position {
	w.Helper()
	var tenants []uuid.UUID
	for i := range pending {
		if t := pending[i].TenantID; t != events.Platform && !slices.Contains(tenants, t) {
			tenants = append(tenants, t)
		}
	}
	var positions []events.Position
	w.must(pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(context.Background(), `INSERT INTO tenants (id, name, class, status, created_at)
 SELECT id, 'T', 'small', 'ACTIVE', now() FROM unnest($1::uuid[]) id ON CONFLICT DO NOTHING`, tenants); err != nil {
			return err
		}
		positions, err = w.log.AppendTx(context.Background(), tx, pending)
		return err
	}))
	w.remember(positions)
	return positions
}

// separate returns events as a process holds its own.
func separate(list []events.Envelope) (all []*events.Envelope) {
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

// remember holds appended events for the consumers of the log, as a process does with its own, but not all of them:
// others are as those of another process.
func (w *logFixture) remember(positions []events.Position) {
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
		list, err := w.log.Read(context.Background(), partition, s.first-1, s.last, 1000)
		w.must(err)
		list = slices.DeleteFunc(list, func(e events.Envelope) bool { return e.Position.Number%7 == 0 })
		eventlog.Newest{Recent: w.recent}.Put(separate(list))
	}
}

// subscribe adds a tenant's subscription from its partition's head on.
func (w *logFixture) subscribe(tenant uuid.UUID, from time.Time, grants ...domain.Grant) domain.Subscription {
	w.Helper()
	s := domain.Subscription{ID: newID(), TenantID: tenant, Plan: "p", Status: domain.SubscriptionActive, Entitlements: append([]domain.Grant{}, grants...), CreatedAt: from}
	w.history(tenant, from, &s)
	return s
}

func (w *logFixture) history(tenant uuid.UUID, from time.Time, s *domain.Subscription) {
	w.Helper()
	body, err := json.Marshal(s)
	w.must(err)
	at := w.append(events.Pending{EventID: newID(), Subject: events.SubscriptionCreated, TenantID: tenant, DedupeKey: events.KeyEvent(newID()),
		Actor: events.Actor{Type: "system", ID: "test"}, Residency: events.ResidencyUnspecified, OccurredAt: from, Payload: body})[0]
	_, err = w.pool.Exec(context.Background(), `INSERT INTO subscription_history VALUES ($1, $2, $3, $4)`, tenant, at.Number, from, body)
	w.must(err)
}

func grant(feature, reset string) domain.Grant {
	return domain.Grant{Entitlement: domain.Entitlement{Feature: feature, ResetPeriod: reset}, Type: domain.FeatureMetered}
}

// account is a grant without a limit that has an account.
func account(feature, reset string) domain.Grant {
	g := grant(feature, reset)
	g.Type = domain.FeatureQuota
	return g
}

// admittedEvent is usage of a feature that was granted when it was recorded, in the month of its time.
func admittedEvent(tenant uuid.UUID, id, feature string, amount int64, at time.Time) events.Pending {
	p := usageEvent(tenant, id, feature, amount, at)
	used, held, period := json.Number("0"), json.Number("0"), domain.PeriodKey(domain.ResetMonthly, at)
	body, err := json.Marshal(events.Admitted{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage",
		Admitted: events.Admission{By: events.ByConsume, SubscriptionID: newID(), FeatureType: domain.FeatureQuota, PeriodKey: period, Used: &used, Held: &held}})
	if err != nil {
		panic(err)
	}
	p.Subject, p.Payload, p.Account = events.UsageAdmitted, body, &events.AccountChange{Feature: feature, PeriodKey: period, Used: amount}
	return p
}

// committedEvent is the commit of a reservation in May.
func committedEvent(tenant uuid.UUID, id, feature string, amount int64) events.Pending {
	p := admittedEvent(tenant, id, feature, amount, may)
	var a events.Admitted
	if err := json.Unmarshal(p.Payload, &a); err != nil {
		panic(err)
	}
	a.Admitted.By, a.Admitted.ReservationID = events.ByCommit, id
	var err error
	if p.Payload, err = json.Marshal(a); err != nil {
		panic(err)
	}
	return p
}

// usageEvent is a recorded event of a tenant.
func usageEvent(tenant uuid.UUID, id, feature string, amount int64, at time.Time) events.Pending {
	body, err := json.Marshal(events.Usage{EventID: id, Feature: feature, Amount: amount, Timestamp: at, Type: "usage"})
	if err != nil {
		panic(err)
	}
	return events.Pending{EventID: newID(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(id), CorrelationID: newID(),
		Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: at, Payload: body, Counts: events.Counts{Accepted: 1}}
}

// tenantIn finds a tenant id that lives in a partition.
func tenantIn(partition int16) uuid.UUID {
	for {
		if id := newID(); events.PartitionOf(id) == partition {
			return id
		}
	}
}

// topic returns the records that the relay would publish of a topic and partition
// after a position.
func (w *logFixture) topic(topic events.Topic, partition int16, after int64) []events.Record {
	w.Helper()
	var records []events.Record
	for i, e := range w.read(topic, partition, after) {
		r, err := codec.ToRecord(&e)
		w.must(err)
		r.Offset = int64(i)
		records = append(records, r)
	}
	return records
}

func (w *logFixture) read(topic events.Topic, partition int16, after int64) (list []events.Envelope) {
	w.Helper()
	w.must(pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) (err error) {
		list, err = w.log.ReadTx(context.Background(), tx, partition, after, 1<<62, topic, 1<<30)
		return err
	}))
	return list
}

func (w *logFixture) checkpoint(consumer string, partition int16) (position int64) {
	w.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT position FROM consumer_checkpoints WHERE consumer = $1 AND generation = 1 AND partition = $2`,
		consumer, partition).Scan(&position))
	return position
}

// counts are the terms of the identity in a partition's head.
func (w *logFixture) counts(partition int16) (c events.Counts) {
	w.Helper()
	w.must(w.pool.QueryRow(context.Background(), `SELECT accepted, validated, rejected, parked FROM log_heads WHERE partition = $1`, partition).
		Scan(&c.Accepted, &c.Validated, &c.Rejected, &c.Parked))
	return c
}

// runner returns a runner of a consumer, and its tally.
func (w *logFixture) runner(c projections.Consumer) (*consume.Runner, *tally) {
	seen := &tally{}
	if c.MaxPerPartition == 0 {
		c.MaxPerPartition = projections.MaxWithFollowUps
	}
	writeTotalsOften(&c)
	r := &consume.Runner{Pool: w.pool, Log: w.log, Consumer: c, NewID: newID, Logger: slog.New(slog.DiscardHandler), Observe: w.payloads.Observer(seen), Newest: eventlog.Newest{Recent: w.recent}}
	if c.Topic == 0 && len(c.Subjects) > 0 {
		r.Recent, w.reading = w.recent.Reader(c.Subjects), true
	}
	return r, seen
}

// writeTotalsOften makes the aggregator write running totals in every test, not only of large figures.
func writeTotalsOften(c *projections.Consumer) {
	if h, ok := c.Handler.(*usage.Handler); ok {
		h.TotalsEvery = 3
	}
}

func (w *logFixture) validator() (*consume.Runner, *tally) {
	return w.runner(validate.Consumer(newID, new(validate.Histories)))
}

func (w *logFixture) aggregator(handler projections.Handler) (*consume.Runner, *tally) {
	c := usage.Consumer(newID, models.DefaultFolds().Usage)
	if handler != nil {
		c.Handler = handler
	}
	return w.runner(c)
}

// process delivers records and fails the test if they are not accepted.
func (w *logFixture) process(r *consume.Runner, records []events.Record) {
	w.Helper()
	w.must(r.Process(context.Background(), records))
}

// aggregate is a row of usage_aggregates.
type aggregate struct {
	Amount         string
	Count, Applied int64
	Last           time.Time
}

type aggregateKey struct {
	Tenant             uuid.UUID
	Feature, PeriodKey string
}

func (w *logFixture) aggregates() map[aggregateKey]aggregate {
	w.Helper()
	rows, err := w.pool.Query(context.Background(), `SELECT tenant_id, feature, period_key, amount::text, event_count, applied_count, last_event_at FROM usage_aggregates`)
	w.must(err)
	all := map[aggregateKey]aggregate{}
	var k aggregateKey
	var a aggregate
	_, err = pgx.ForEachRow(rows, []any{&k.Tenant, &k.Feature, &k.PeriodKey, &a.Amount, &a.Count, &a.Applied, &a.Last}, func() error {
		a.Last = a.Last.UTC()
		all[k] = a
		return nil
	})
	w.must(err)
	return all
}
