package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// thresholdFixture is a log with a tenant that has the limit 100 of "f", and thresholds.
type thresholdFixture struct {
	testing.TB
	grants *grants
	log    *Log
	pool   *pgxpool.Pool
	tenant uuid.UUID
	n      int64 // numbers positions and verdicts
}

func newThresholdFixture(t testing.TB, url string, change ...func(*Config)) *thresholdFixture {
	f := &thresholdFixture{TB: t, grants: &grants{limits: map[uuid.UUID]int64{}, thresholds: map[uuid.UUID][]domain.Threshold{}}}
	f.log, f.pool = openLogAt(t, url, append(change, func(c *Config) { c.Histories = f.grants })...)
	f.another()
	return f
}

// another goes on with another tenant.
func (f *thresholdFixture) another() {
	f.tenant = uuid.Must(uuid.NewV7())
	f.limit(100)
}

// limit sets the limit, in the cache as in the table.
func (f *thresholdFixture) limit(limit int64) {
	f.Helper()
	f.n++
	f.grants.limits[f.tenant] = limit
	h, _ := f.grants.Of(context.Background(), nil, []uuid.UUID{f.tenant}, nil)
	snapshot, err := json.Marshal(h[f.tenant].History[0].Subscription)
	must.OK(f, err)
	_, err = f.pool.Exec(
		context.Background(),
		`INSERT INTO subscription_history (tenant_id, from_position, effective_from, snapshot) VALUES ($1, $2, now(), $3)`,
		f.tenant,
		f.n,
		snapshot,
	)
	must.OK(f, err)
}

// threshold adds a threshold, in the cache as in the table.
func (f *thresholdFixture) threshold(feature string, percent, amount int64) uuid.UUID {
	f.Helper()
	f.n++
	t := domain.Threshold{ID: uuid.Must(uuid.NewV7()), TenantID: f.tenant, Feature: orNil(feature), Percent: orNil(percent), Amount: orNil(amount)}
	_, err := f.pool.Exec(
		context.Background(),
		`INSERT INTO thresholds (id, tenant_id, feature, percent, amount, position, created_at) VALUES ($1, $2, $3, $4, $5, $6, now())`,
		t.ID,
		f.tenant,
		t.Feature,
		t.Percent,
		t.Amount,
		f.n,
	)
	must.OK(f, err)
	f.grants.thresholds[f.tenant] = append(f.grants.thresholds[f.tenant], t)
	return t.ID
}

func orNil[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

func (f *thresholdFixture) consume(id string, amount int) metering.Outcome {
	f.Helper()
	outcomes, err := f.log.Submit(context.Background(), f.tenant, []metering.Submitted{requestFor(f.tenant, id, amount)})
	must.OK(f, err)
	return outcomes[0]
}

// verdict makes a verdict on usage, or on a correction, of a feature.
func (f *thresholdFixture) verdict(raw int64, feature string, amount int64) events.Pending {
	payload := codec.VerdictBody(
		&events.Validated{
			RawPosition:             raw,
			EventID:                 "e",
			Feature:                 feature,
			Amount:                  amount,
			Count:                   1,
			ValidatedSubscriptionID: f.tenant,
			FeatureType:             "QUOTA",
			PeriodKey:               domain.PeriodLifetime,
		},
	)
	return events.Pending{
		EventID:    uuid.Must(uuid.NewV7()),
		Subject:    events.UsageValidated,
		TenantID:   f.tenant,
		DedupeKey:  events.KeyValidated(raw),
		Actor:      events.Actor{Type: "service", ID: "v"},
		Residency:  events.ResidencyUnspecified,
		OccurredAt: time.Now(),
		Payload:    payload,
		Account:    &events.AccountChange{Feature: feature, PeriodKey: domain.PeriodLifetime, Used: amount},
	}
}

func (f *thresholdFixture) append(pending ...events.Pending) {
	f.Helper()
	must.OK(f, pgx.BeginFunc(context.Background(), f.pool, func(tx pgx.Tx) error {
		_, err := f.log.AppendTx(context.Background(), tx, pending)
		return err
	}))
}

// counted appends verdicts on amounts of f.
func (f *thresholdFixture) counted(amounts ...int64) {
	f.Helper()
	var list []events.Pending
	for _, amount := range amounts {
		f.n++
		list = append(list, f.verdict(f.n, "f", amount))
	}
	f.append(list...)
}

// crossed lists the crossings of the tenant: feature, value, percentage, limit, before and after, and the distance to the event that caused
// each.
func (f *thresholdFixture) crossed() (list []string) {
	f.Helper()
	rows, err := f.pool.Query(
		context.Background(),
		`SELECT payload(l)->>'thresholdId', payload(l)->>'feature', payload(l)->>'amount', coalesce(payload(l)->>'percent', ''),
			coalesce(payload(l)->>'limit', ''),
 payload(l)->>'before', payload(l)->>'after', c.subject, c.position < l.position AND c.origin = l.origin AND c.tenant_id = l.tenant_id
 FROM event_log_rows l LEFT JOIN event_log_rows c ON c.event_id = l.causation_id WHERE l.tenant_id = $1 AND l.subject = $2
 ORDER BY l.position`,
		f.tenant,
		events.ThresholdCrossed,
	)
	must.OK(f, err)
	var id uuid.UUID
	var feature, value, percent, limit, before, after string
	var subject int16
	var caused bool
	_, err = pgx.ForEachRow(rows, []any{&id, &feature, &value, &percent, &limit, &before, &after, &subject, &caused}, func() error {
		at := slices.IndexFunc(f.grants.thresholds[f.tenant], func(t domain.Threshold) bool { return t.ID == id })
		list = append(
			list,
			fmt.Sprintf("%d: %s %s (%s of %s) from %s to %s by %d %v", at, feature, value, percent, limit, before, after, subject, caused),
		)
		return nil
	})
	must.OK(f, err)
	return list
}

func (f *thresholdFixture) expect(want ...string) {
	f.Helper()
	if got := f.crossed(); !slices.Equal(got, want) {
		f.Errorf("the crossings are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// 32 clients consume at once: each threshold is crossed once, by the request that rises to it.
func TestThresholdIsCrossedOnceBy32Clients(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	f.limit(1000)
	f.threshold("f", 80, 0)
	f.threshold("", 0, 7)
	f.threshold("g", 0, 1)
	var clients sync.WaitGroup
	for c := range 32 {
		clients.Go(func() {
			for n := range 30 {
				f.consume(fmt.Sprint(c, "-", n), 1)
			}
		})
	}
	clients.Wait()
	f.expect("1: f 7 ( of 1000) from 6 to 7 by 8 true", "0: f 800 (80 of 1000) from 799 to 800 by 8 true")
	checkDense(t, f.pool)
}

// The used amount rises to a threshold, falls by a correction, and rises to it again: one event. Another limit has another value, and one
// more.
func TestThresholdIsCrossedOnceForEachPeriodAndValue(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	f.threshold("f", 80, 0)
	f.consume("a", 79)
	f.expect()
	f.counted(1)
	first := "0: f 80 (80 of 100) from 79 to 80 by 2 true"
	f.expect(first)
	f.counted(-30)
	f.consume("b", 35)
	f.expect(first)
	f.counted(-10, 15) // falls and rises in one transaction
	f.expect(first)
	f.limit(200)
	f.consume("c", 10)
	f.expect(first)
	f.consume("d", 60)
	second := "0: f 160 (80 of 200) from 100 to 160 by 8 true"
	f.expect(first, second)
	f.limit(100) // the value of before
	f.counted(-100, 70)
	f.expect(first, second)
	f.another()
	f.threshold("", 0, 1)
	f.append(f.verdict(901, "f", 1), f.verdict(902, "g", 2), f.verdict(903, "f", 5))
	f.expect("0: f 1 ( of 100) from 0 to 1 by 2 true", "0: g 1 ( of ) from 0 to 2 by 2 true")
}

// A verdict that is known changes no account, and crosses no threshold. One that is defined when the amount is there already is not
// crossed.
func TestThresholdIsNotCrossedByKnownEvents(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	f.append(f.verdict(1, "f", 50))
	f.threshold("f", 0, 50)
	f.threshold("f", 0, 60)
	f.append(f.verdict(1, "f", 50), f.verdict(1, "f", 50))
	f.consume("a", 5)
	f.consume("a", 5)
	f.expect()
	f.append(f.verdict(1, "f", 50), f.verdict(2, "f", 5), f.verdict(2, "f", 5))
	f.expect("1: f 60 ( of 100) from 55 to 60 by 2 true")
	must.OK(f, func() error {
		_, err := f.pool.Exec(t.Context(), `UPDATE thresholds SET removed = position + 1 WHERE tenant_id = $1`, f.tenant)
		return err
	}())
	f.grants.thresholds[f.tenant] = nil
	f.counted(-50, 40)
	f.consume("b", 5)
	if got := f.crossed(); len(got) != 1 {
		t.Errorf("a removed threshold is crossed: %q", got)
	}
}

// A COMMIT at a crossing whose answer or request is lost, once or twice, leaves one crossing.
func TestThresholdIsCrossedOnceIfACommitIsLost(t *testing.T) {
	database := migrated(t)
	for name, arm := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			c, proxied := localtest.NewCutter(t, database)
			f := newThresholdFixture(t, proxied)
			f.consume("warm", 1) // origins and statements are known
			var want []string
			for round := range 4 {
				value := int64(10 + 10*round)
				f.threshold("f", 0, value)
				before := c.Reached.Load()
				arm(c).Store(int32(1 + round%2)) // the second look may be cut, too
				f.consume(fmt.Sprint("r", round), 10)
				if c.Reached.Load() == before {
					t.Fatalf("round %d: no COMMIT was cut", round)
				}
				arm(c).Store(0)
				want = append(want, fmt.Sprintf("%d: f %d ( of 100) from %d to %d by 8 true", round, value, 1+10*round, 11+10*round))
			}
			f.expect(want...)
			checkDense(t, f.pool)
		})
	}
}

// atTheHead folds usage of f inline: each recorded event gets a verdict.
type atTheHead struct{ *thresholdFixture }

func (atTheHead) Topic() events.Topic             { return events.TopicUsageRaw }
func (atTheHead) Open(partitions []int16) []int16 { return partitions }
func (atTheHead) Move([]events.InlineStretch) (sql string, args []any) {
	return `UPDATE log_heads SET partition = partition WHERE false`, nil
}
func (atTheHead) Folded([]events.InlineStretch, []events.Envelope, int, time.Duration) {}
func (atTheHead) Lock(partitions []int16) (sql string, args []any) {
	return `SELECT partition, topic_positions[1] FROM log_heads WHERE partition = ANY ($1)`, []any{partitions}
}

func (a atTheHead) Fold(
	_ context.Context,
	_ Query,
	_ []events.InlineStretch,
	batch []events.Envelope,
) (list []events.Pending, ok bool, err error) {
	for i := range batch {
		u, err := codec.UsageOf(batch[i].Payload)
		if batch[i].Subject != events.UsageRecorded || err != nil {
			continue
		}
		list = append(list, a.verdict(batch[i].Position.Number, "f", u.Amount))
	}
	return list, true, nil
}

// Verdicts that are made in the transaction of their usage cross thresholds there, together with requests of the same group.
func TestThresholdIsCrossedByInlineVerdicts(t *testing.T) {
	var f *thresholdFixture
	inline := &atTheHead{}
	f = newThresholdFixture(t, migrated(t), func(c *Config) { c.Inline = inline })
	inline.thresholdFixture = f
	f.threshold("", 50, 0)
	used := f.warm()
	w := newWriter(f.log, false)
	subs := []*submission{
		{tenant: f.tenant, batch: []metering.Submitted{usageEvent(f.tenant, "u", int(49-used))}},
		{tenant: f.tenant, batch: []metering.Submitted{requestFor(f.tenant, "r", 2)}},
		{tenant: f.tenant, batch: []metering.Submitted{usageEvent(f.tenant, "v", 5)}},
	}
	for _, s := range subs {
		s.outcomes, s.done, s.load = make([]metering.Outcome, 1), make(chan error, 1), newQueueLoad(time.Hour)
	}
	w.commit(subs)
	for _, s := range subs {
		must.OK(f, <-s.done)
	}
	f.expect(fmt.Sprintf("0: f 50 (50 of 100) from %d to 51 by 2 true", used+2)) // the request has its turn before the verdicts
	f.another()
	used = f.warm()
	f.threshold("", 50, 0)
	submit(t, f.log, f.tenant, usageEvent(f.tenant, "w", 60))
	f.expect(fmt.Sprintf("0: f 50 (50 of 100) from %d to %d by 2 true", used, used+60))
}

// warm submits usage until its verdicts are folded inline: their origin is numbered for a later group.
func (f *thresholdFixture) warm() (used int64) {
	f.Helper()
	for n := 0; used == 0; n++ {
		submit(f, f.log, f.tenant, usageEvent(f.tenant, fmt.Sprint("warm", n), 1))
		time.Sleep(10 * time.Millisecond)
		_, err := fmt.Sscan(usedOf(f, f.pool, f.tenant), &used)
		must.OK(f, err)
	}
	return used
}

// A tenant without thresholds has not one statement more; with thresholds, a request has none more either until it crosses one.
func TestThresholdsCostNoStatement(t *testing.T) {
	f := newThresholdFixture(t, migrated(t))
	traced, sent := localtest.Traced(t, f.pool)
	var err error
	f.log, err = New(
		t.Context(),
		traced,
		Config{
			Producer:    events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
			LongestWait: time.Hour,
			Histories:   f.grants,
			Written:     localtest.CheckPayloads(t).Written,
		},
	)
	must.OK(f, err)
	t.Cleanup(f.log.Close)
	f.consume("warm", 1)
	statements := func(id string) []string {
		sent.Take()
		f.consume(id, 1)
		return sent.Take()
	}
	without := statements("a")
	f.threshold("", 80, 0)
	if with := statements("b"); !slices.Equal(with, without) {
		t.Errorf("with a threshold: %q\nwithout: %q", with, without)
	}
	f.threshold("", 0, 4)
	if crossing := statements("c"); len(crossing) != len(without)+2 {
		t.Errorf("at a crossing: %q\nwithout: %q", crossing, without)
	}
	f.expect("1: f 4 ( of 100) from 3 to 4 by 8 true")
}
