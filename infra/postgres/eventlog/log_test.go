package eventlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// openLog makes a migrated database with a log on it.
func openLog(t testing.TB) (*Log, *pgxpool.Pool, string) {
	url := localtest.Migrated(t, postgres.Migrate)
	l, pool := openLogAt(t, url)
	return l, pool, url
}

func openLogAt(t testing.TB, url string, change ...func(*Config)) (*Log, *pgxpool.Pool) {
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	cfg := Config{
		Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
		// A slow machine must not cause refusals: tests of refusals set their own bound.
		LongestWait: time.Hour,
		Written:     localtest.CheckPayloads(t).Written,
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := New(t.Context(), pool, cfg)
	must.OK(t, err)
	t.Cleanup(l.Close)
	return l, pool
}

// usageEvent makes a submission, in short as those that are decoded; other amounts make other payloads.
func usageEvent(tenant uuid.UUID, eventID string, amount int) metering.Submitted {
	return metering.Submitted{Pending: events.Pending{
		EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(eventID),
		Canonical: strictjson.Version, Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified,
		OccurredAt: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		Payload:    fmt.Appendf(nil, `[%d,"f"]`, amount), Counts: events.Counts{Accepted: 1},
	}}
}

func submit(t testing.TB, l *Log, tenant uuid.UUID, batch ...metering.Submitted) []metering.Outcome {
	t.Helper()
	outcomes, err := l.Submit(t.Context(), tenant, batch)
	must.OK(t, err)
	return outcomes
}

func statuses(outcomes []metering.Outcome) []metering.OutcomeStatus {
	var s []metering.OutcomeStatus
	for _, p := range outcomes {
		s = append(s, p.Status)
	}
	return s
}

// However late a retry comes, and whatever the writers know or have forgotten.
func TestP2_TheLogItselfRefusesASecondEventOfAKey(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	_, err := pool.Exec(t.Context(), `INSERT INTO event_log_rows
 SELECT (jsonb_populate_record(l, '{"position": 2000000}')).* FROM event_log_rows l WHERE tenant_id = $1`, tenant)
	if postgres.SQLState(err) != postgres.UniqueViolation {
		t.Fatalf("a key of two million positions before was taken again: %v", err)
	}
}

func TestP4_EachConflictIsRecordedOnce(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1))
	for range 3 {
		submit(t, l, tenant, usageEvent(tenant, "a", 2), usageEvent(tenant, "a", 3), usageEvent(tenant, "a", 2))
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log WHERE subject = $1`, events.UsageConflicted); n != 2 {
		t.Fatalf("%d conflicts are recorded for 2 other payloads", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM event_log l WHERE subject = $1 AND l.payload ->> 'amount' = '1'`,
		events.UsageRecorded); n != 1 {
		t.Fatal("the first payload did not stay")
	}
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// checkDense checks the promises of positions: dense from 1, each row pointing to the
// one before it on its topic, heads and counters equal to the rows.
func checkDense(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for what, sql := range map[string]string{
		"holes": `SELECT count(*) FROM (SELECT position - row_number() OVER (PARTITION BY partition ORDER BY position) d FROM event_log) x
			WHERE d <> 0`,
		"wrong previous": `SELECT count(*) FROM (SELECT previous_position p, coalesce(lag(position) OVER (PARTITION BY partition, topic
			ORDER BY position), 0) q
 FROM event_log) x WHERE p <> q`,
		"wrong heads": `SELECT count(*) FROM log_heads h WHERE position <> (SELECT coalesce(max(position), 0) FROM event_log l
			WHERE l.partition = h.partition)
 OR accepted <> (SELECT count(*) FROM event_log l WHERE l.partition = h.partition AND subject IN (1, 8, 9, 19))`,
		"time going back": `SELECT count(*) FROM (SELECT recorded_at r, lag(recorded_at) OVER (PARTITION BY partition ORDER BY position) q
			FROM event_log) x WHERE r < q`,
	} {
		if n := count(t, pool, sql); n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
}

func TestP2_SixteenClientsSendTheSameBatchInOtherOrders(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	seed := tier.Seed(t)
	var mu sync.Mutex
	appended := map[string]int{}
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(c)))
			order := rnd.Perm(200)
			batch := make([]metering.Submitted, len(order))
			for i, n := range order {
				batch[i] = usageEvent(tenant, fmt.Sprint("e", n), n+1)
			}
			outcomes, err := l.Submit(context.Background(), tenant, batch)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, p := range outcomes {
				if p.Status == metering.Appended {
					appended[batch[i].DedupeKey]++
				} else if p.Status != metering.Duplicate {
					t.Errorf("%s: %v", batch[i].DedupeKey, p)
				}
			}
		})
	}
	wg.Wait()
	if len(appended) != 200 {
		t.Fatalf("%d of 200 were accepted", len(appended))
	}
	for key, n := range appended {
		if n != 1 {
			t.Errorf("%s was accepted %d times", key, n)
		}
	}
	checkDense(t, pool)
}

func TestAppendTxSkipsWhatIsThere(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	verdict := func(raw int64) events.Pending {
		id := uuid.Must(uuid.NewV7())
		payload := codec.VerdictBody(&events.Validated{RawPosition: raw, EventID: "e", Feature: "f", Amount: 1, Count: 1,
			ValidatedSubscriptionID: tenant, FeatureType: "METERED", PeriodKey: "2026-05"})
		return events.Pending{EventID: id, Subject: events.UsageValidated, TenantID: tenant, DedupeKey: events.KeyValidated(raw),
			Actor: events.Actor{Type: "service", ID: "v"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: payload}
	}
	appendAll := func(pending ...events.Pending) (positions []events.Position) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			positions, err = l.AppendTx(t.Context(), tx, pending)
			return err
		})
		must.OK(t, err)
		return positions
	}
	first := appendAll(verdict(1), verdict(2), verdict(1))
	second := appendAll(verdict(3), verdict(2), verdict(4))
	if first[2] != first[0] || second[1] != first[1] || second[0].Number != 3 || second[2].Number != 4 {
		t.Fatalf("first %v, second %v", first, second)
	}
	checkDense(t, pool)
}

// A transaction that knows its heads appends several times. The second append follows the first, also if it finds an event in the log, and
// each event is counted once.
func TestATransactionThatKnowsItsHeadsAppendsAgain(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	p := events.PartitionOf(tenant)
	submit(t, l, tenant, usageEvent(tenant, "before", 1))
	var trips [][]events.Position
	err := pgx.BeginFunc(t.Context(), pool, func(inner pgx.Tx) error {
		tx := In(inner)
		var seen int64
		read := &LockedRead{server.Statement{SQL: "SELECT count(*) FROM event_log_rows WHERE partition = $1", Args: []any{p}},
			func(rows pgx.Rows) (err error) {
				seen, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
				return err
			}}
		if err := l.LockHeads(t.Context(), tx, []int16{p}, read); err != nil || seen != 1 {
			t.Errorf("%d events are read with the lock, want 1: %v", seen, err)
		}
		for _, ids := range [][]string{{"a", "b"}, {"c", "a", "d"}, {"b"}, {"e"}} {
			var list []events.Pending
			for _, id := range ids {
				list = append(list, usageEvent(tenant, id, 1).Pending)
			}
			at, err := l.Append(t.Context(), tx, list)
			if err != nil {
				return err
			}
			trips = append(trips, at)
		}
		return tx.Flush(t.Context())
	})
	must.OK(t, err)
	var numbers [][]int64
	for _, list := range trips {
		var of []int64
		for _, at := range list {
			of = append(of, at.Number)
		}
		numbers = append(numbers, of)
	}
	if want := "[[2 3] [4 2 5] [3] [6]]"; fmt.Sprint(numbers) != want {
		t.Errorf("the events are at %v, want %s", numbers, want)
	}
	var position, accepted int64
	if err := pool.QueryRow(t.Context(), `SELECT position, accepted FROM log_heads WHERE partition = $1`, p).Scan(&position,
		&accepted); err != nil || position != 6 || accepted != 6 {
		t.Errorf("the head is at %d and counts %d events, want 6: %v", position, accepted, err)
	}
	checkDense(t, pool)
}

func TestReadGivesWholeEnvelopes(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	sent := usageEvent(tenant, "a", 1)
	sent.CorrelationID, sent.Replay = uuid.Must(uuid.NewV7()), "offline"
	at := submit(t, l, tenant, sent, usageEvent(tenant, "b", 1))
	got, err := l.Read(t.Context(), at[0].Position.Partition, 0, 1<<40, 10)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d events, %v", len(got), err)
	}
	e := got[0]
	if e.EventID != sent.EventID || e.CorrelationID != sent.CorrelationID || e.Replay != "offline" ||
		string(e.Payload) != string(codec.PayloadOf(&sent.Pending)) ||
		e.Actor != sent.Actor || e.Producer.Instance != "test" || e.LogID != l.ID() ||
		e.Epoch != readEpoch(t, pool, e.Position.Partition) || e.Previous != 0 || got[1].Previous != 1 {
		t.Fatalf("%+v", e)
	}
	if _, err := codec.ToRecord(&e); err != nil {
		t.Fatal(err)
	}
}

func TestP4_ConflictWithinABatchComesBeforePolicy(t *testing.T) {
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	only := func(s metering.Submitted) metering.Submitted { s.Refusal = domain.Refuse("c", "", "r"); return s }
	got := submit(t, l, tenant, only(usageEvent(tenant, "a", 3)), usageEvent(tenant, "a", 1), only(usageEvent(tenant, "a", 2)),
		only(usageEvent(tenant, "a", 1)), only(usageEvent(tenant, "b", 1)))
	want := []metering.OutcomeStatus{metering.Denied, metering.Appended, metering.Conflict, metering.Duplicate, metering.Denied}
	if !slices.Equal(statuses(got), want) {
		t.Errorf("%v, want %v", statuses(got), want)
	}
}

// An event that was withheld after its consumer had read it is no failure that anyone could act on.
func TestTheOutboxShowsLateStandInsAsPublished(t *testing.T) {
	t.Parallel()
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1), usageEvent(tenant, "b", 1))
	partition := events.PartitionOf(tenant)
	for _, sql := range []string{`UPDATE relay_cursors SET position = 2 WHERE partition = $1 AND $2::uuid IS NOT NULL`,
		`INSERT INTO withheld_records VALUES ($1, 1, 1, $2, gen_random_uuid(), 'x', now(), false), ($1, 2, 1, $2, NULL, 'x', now(), true)`} {
		must.Exec(t, pool, sql, partition, tenant)
	}
	var seen string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(status, ' ' ORDER BY position) FROM outbox_events WHERE partition = $1`,
		partition).Scan(&seen); err != nil || seen != "failed published" {
		t.Errorf("%q, %v", seen, err)
	}
}
