package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// lostCommitSteps are requests of a tenant with the limit 100, of which 1 is used, and their outcomes.
func lostCommitSteps() []lostCommitStep {
	hold := func(id string, amount int64, lasts time.Duration) request {
		return request{kind: domain.Hold, reservation: id, amount: amount, lasts: lasts * time.Second}
	}
	expire := func(id string) request { return request{kind: domain.Expire, reservation: id} }
	return []lostCommitStep{
		{0, []request{hold("a", 20, 60), hold("b", 30, 60)}, "granted 1 20, granted 1 50"},
		{0, []request{hold("c", 60, 60)}, "denied quota_exceeded"},
		{0, []request{{kind: domain.Extend, reservation: "a", lasts: time.Hour}}, "granted 1 50"},
		{0, []request{{kind: domain.Commit, reservation: "a", usage: "part", amount: 15}}, "granted 16 30"},
		{0, []request{{kind: domain.Release, reservation: "b"}}, "granted 16 0"},
		{0, []request{hold("d", 10, 5), hold("e", 10, 5)}, "granted 16 10, granted 16 20"},
		{0, []request{hold("f", 10, 60)}, "granted 16 30"},
		{6, []request{expire("d"), expire("a"), expire("f")}, "granted 16 20, denied reservation_ended, denied reservation_not_found"},
		{0, []request{{kind: domain.Use, usage: "room", amount: 70}}, "granted 86 10"}, // ends e
		{60, []request{hold("g", 100, 5)}, "denied quota_exceeded"},                    // ends f
		{0, []request{hold("h", 5, 5)}, "granted 86 5"},
		{0, []request{{kind: domain.Commit, reservation: "h", usage: "over", amount: 50, overage: true}}, "granted 136 0"},
	}
}

type lostCommitStep struct {
	later time.Duration // seconds
	list  []request
	want  string
}

// Requests about reservations take effect once, too, each at a COMMIT whose answer or request is lost once or twice. So do those
// before which due reservations expire.
func TestP7_LostCommitAnswersEndReservationsOnce(t *testing.T) {
	database := migrated(t)
	for name, arm := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			c, proxied := localtest.NewCutter(t, database)
			tenant, at := uuid.Must(uuid.NewV7()), time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
			l, pool := openLogAt(t, proxied, func(c *Config) {
				c.Histories, c.Now = &grants{limits: map[uuid.UUID]int64{tenant: 100}}, func() time.Time { return at }
			})
			warm := request{kind: domain.Use, usage: "warm", amount: 1}
			submit(t, l, tenant, asksOf(tenant, warm).batch...) // origins and statements are known
			for i, step := range lostCommitSteps() {
				at = at.Add(step.later * time.Second)
				before := c.Reached.Load()
				arm(c).Store(int32(1 + i%2)) // the second look may be cut, too
				s := asksOf(tenant, step.list...)
				rows := countRows(t, pool, tenant)
				s.outcomes = submit(t, l, tenant, s.batch...)
				if got := strings.Join(outcomesOf(s), ", "); got != step.want {
					t.Fatalf("step %d, %+v: %v instead of %v", i, step.list, got, step.want)
				}
				if stored := countRows(t, pool, tenant); (c.Reached.Load() == before) != (stored == rows) {
					t.Fatalf("step %d: %d COMMITs were cut, %d rows are stored", i, c.Reached.Load()-before, stored-rows)
				}
				arm(c).Store(0)
				for k := range s.outcomes {
					if s.outcomes[k].Status == metering.Appended {
						checkStored(t, l, &s.batch[k], &s.outcomes[k])
					}
				}
			}
			var ends string
			must.OK(
				t,
				pool.QueryRow(t.Context(), `SELECT (SELECT sum(used) || ' ' || sum(held) || ': ' FROM quota_accounts
					WHERE tenant_id = $1) ||
 (SELECT string_agg(reservation_id || ' ' || state, ', ' ORDER BY reservation_id) FROM reservations WHERE tenant_id = $1)`, tenant).
					Scan(&ends),
			)
			if want := "136 0: a COMMITTED, b RELEASED, d EXPIRED, e EXPIRED, f EXPIRED, h COMMITTED"; ends != want {
				t.Errorf("%s instead of %s", ends, want)
			}
			checkDense(t, pool)
		})
	}
}

// request is a request about amounts of the feature "f".
type request struct {
	kind               domain.RequestKind
	reservation, usage string // ids
	amount             int64
	lasts              time.Duration
	overage            bool
}

// capture is a log that keeps the submission and stores no event.
type capture struct{ batch []metering.Submitted }

var errCaptured = errors.New("captured")

func (c *capture) Admit(uuid.UUID) error { return nil }

func (c *capture) Submit(_ context.Context, _ uuid.UUID, batch []metering.Submitted) ([]metering.Outcome, error) {
	c.batch = batch
	return nil, errCaptured
}

func (c *capture) Read(context.Context, int16, int64, int64, int) ([]events.Envelope, error) {
	return nil, errCaptured
}

// asksOf makes the submission of requests of one kind, as package metering does.
func asksOf(tenant uuid.UUID, list ...request) *submission {
	c := &capture{}
	q := &metering.Quotas{Log: c, Now: time.Now, NewID: func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	by := commands.Caller{TenantID: tenant, Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified}
	whole := func(int) string { return "" }
	switch r, ctx := &list[0], context.Background(); r.kind {
	case domain.Use:
		var together []intake.Consumption
		for _, r := range list {
			together = append(together, intake.Consumption{EventID: r.usage, Feature: "f", Amount: r.amount})
		}
		_, _, _ = q.Consume(ctx, by, together, whole)
	case domain.Hold:
		var together []intake.Holding
		for _, r := range list {
			together = append(together, intake.Holding{ReservationID: r.reservation, Feature: "f", Amount: r.amount, Lasts: r.lasts})
		}
		_, _, _ = q.Hold(ctx, by, together, whole)
	case domain.Commit:
		_, _, _ = q.Commit(
			ctx,
			by,
			&intake.Commitment{ReservationID: r.reservation, Feature: "f", EventID: r.usage, Amount: r.amount, Overage: r.overage},
		)
	case domain.Extend:
		_, _ = q.Extend(ctx, by, "f", r.reservation, r.lasts)
	case domain.Release:
		_, _ = q.Release(ctx, by, "f", r.reservation)
	case domain.Expire:
		var due []metering.DueReservation
		for _, r := range list {
			due = append(
				due,
				metering.DueReservation{
					TenantID:      tenant,
					Residency:     events.ResidencyUnspecified,
					ReservationID: r.reservation,
					Feature:       "f",
				},
			)
		}
		_, _ = q.Expire(ctx, due)
	}
	return &submission{
		tenant:   tenant,
		batch:    c.batch,
		whole:    c.batch[0].Whole,
		outcomes: make([]metering.Outcome, len(c.batch)),
		done:     make(chan error, 1),
		load:     newQueueLoad(time.Hour),
	}
}

// outcomesOf describes the outcomes of a submission: the used and held amounts after each grant, the code of each denial.
func outcomesOf(s *submission) (outcomes []string) {
	for i, p := range s.outcomes {
		switch p.Status {
		case metering.Appended:
			var e struct {
				Used, Held json.Number
				Admitted   struct{ Used, Held json.Number }
			}
			_ = json.Unmarshal(s.batch[i].Payload, &e)
			outcomes = append(outcomes, "granted "+string(e.Used+e.Admitted.Used)+" "+string(e.Held+e.Admitted.Held))
		case metering.Denied:
			outcomes = append(outcomes, "denied "+p.Refusal.Code)
		default:
			outcomes = append(outcomes, fmt.Sprint("status ", p.Status))
		}
	}
	return outcomes
}

// checkStored checks that the payload of a granted request is that of its stored event.
func checkStored(t *testing.T, l *Log, s *metering.Submitted, outcome *metering.Outcome) {
	t.Helper()
	at := outcome.Position
	stored, err := l.Read(t.Context(), at.Partition, at.Number-1, at.Number, 1)
	if err != nil || len(stored) != 1 || string(stored[0].Payload) != string(s.Payload) {
		t.Fatalf("answered by %s, stored at %s is %v %v", s.Payload, at, stored, err)
	}
}

func countRows(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID) (n int) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1`, tenant).Scan(&n))
	return n
}
