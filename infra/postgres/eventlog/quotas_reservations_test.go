package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// record is the kind of usage that is recorded without a request, as ingest does.
const record = domain.RequestKind(-1)

// request is a request about amounts of the feature "f".
type request struct {
	kind               domain.RequestKind
	reservation, usage string // ids
	amount             int64
	lasts              time.Duration
	overage            bool
}

// key and sent are those of its event; an extension has no key.
func (r *request) key() string {
	switch r.kind {
	case record, domain.Use, domain.Commit:
		return events.KeyUsage(r.usage)
	case domain.Hold:
		return events.KeyHold(r.reservation)
	case domain.Extend:
		return ""
	}
	return events.KeyReservationEnd(r.reservation)
}

func (r *request) sent() string {
	switch r.kind {
	case record, domain.Use, domain.Hold:
		return fmt.Sprint(r.kind, r.amount)
	case domain.Commit:
		return fmt.Sprint(r.kind, r.amount, r.reservation, r.overage)
	}
	return ""
}

// capture is a log that keeps the submission and stores no event.
type capture struct{ batch []commands.Submitted }

var errCaptured = errors.New("captured")

func (c *capture) Admit(uuid.UUID) error { return nil }

func (c *capture) Submit(_ context.Context, _ uuid.UUID, batch []commands.Submitted) ([]commands.Placement, error) {
	c.batch = batch
	return nil, errCaptured
}

func (c *capture) Read(context.Context, int16, int64, int64, int) ([]events.Envelope, error) {
	return nil, errCaptured
}

// asksOf makes the submission of requests of one kind, as package commands does.
func asksOf(tenant uuid.UUID, list ...request) *submission {
	c := &capture{}
	q := &commands.Quotas{Log: c, Now: time.Now, NewID: func(time.Time) uuid.UUID { return uuid.Must(uuid.NewV7()) }}
	by := commands.Caller{TenantID: tenant, Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified}
	whole := func(int) string { return "" }
	switch r, ctx := &list[0], context.Background(); r.kind {
	case record:
		for _, r := range list {
			c.batch = append(c.batch, usageEvent(tenant, r.usage, int(r.amount)))
		}
	case domain.Use:
		var together []domain.Consumption
		for _, r := range list {
			together = append(together, domain.Consumption{EventID: r.usage, Feature: "f", Amount: r.amount})
		}
		_, _, _ = q.Consume(ctx, by, together, whole)
	case domain.Hold:
		var together []domain.Holding
		for _, r := range list {
			together = append(together, domain.Holding{ReservationID: r.reservation, Feature: "f", Amount: r.amount, Lasts: r.lasts})
		}
		_, _, _ = q.Hold(ctx, by, together, whole)
	case domain.Commit:
		_, _, _ = q.Commit(ctx, by, &domain.Commitment{ReservationID: r.reservation, Feature: "f", EventID: r.usage, Amount: r.amount, Overage: r.overage})
	case domain.Extend:
		_, _ = q.Extend(ctx, by, "f", r.reservation, r.lasts)
	case domain.Release:
		_, _ = q.Release(ctx, by, "f", r.reservation)
	case domain.Expire:
		var due []commands.DueReservation
		for _, r := range list {
			due = append(due, commands.DueReservation{TenantID: tenant, Residency: events.ResidencyUnspecified, ReservationID: r.reservation, Feature: "f"})
		}
		_, _ = q.Expire(ctx, due)
	}
	return &submission{tenant: tenant, batch: c.batch, places: make([]commands.Placement, len(c.batch)), done: make(chan error, 1), load: newQueueLoad(time.Hour)}
}

// modelQuota is the account of a tenant and its reservations, decided one request after another.
type modelQuota struct {
	limit, used int64
	holds       map[string]modelHold
	known       map[string]string // the sent payload by key
}

type modelHold struct {
	amount int64
	until  time.Time
	state  string
}

func newModelQuota(limit int64) *modelQuota {
	return &modelQuota{limit: limit, holds: map[string]modelHold{}, known: map[string]string{}}
}

func (m *modelQuota) held() (sum int64) {
	for _, h := range m.holds {
		if h.state == events.StateHeld {
			sum += h.amount
		}
	}
	return sum
}

// submit returns the outcomes of a submission: recorded usage, and each request that ends due reservations, is decided by itself.
func (m *modelQuota) submit(at time.Time, list []request) (outcomes []string) {
	if list[0].kind != domain.Expire && list[0].kind != record {
		return m.unit(at, list)
	}
	for i := range list {
		outcomes = append(outcomes, m.unit(at, list[i:i+1])...)
	}
	return outcomes
}

func (m *modelQuota) unit(at time.Time, list []request) []string {
	outcomes, conflict := make([]string, len(list)), false
	for i := range list {
		if sent, known := m.known[list[i].key()]; known && m.holds[list[i].reservation].state == events.StateExpired && list[i].sent() == "" {
			outcomes[i] = "expired"
		} else if known && sent == list[i].sent() {
			outcomes[i] = "duplicate"
		} else if known {
			outcomes[i], conflict = "conflict", true
		}
	}
	for denied := false; !conflict; {
		try := &modelQuota{m.limit, m.used, maps.Clone(m.holds), maps.Clone(m.known)}
		after, room := slices.Clone(outcomes), false
		for i := range list {
			switch {
			case after[i] != "":
			case denied:
				after[i] = "left out"
			default:
				if after[i] = try.one(at, &list[i]); strings.HasPrefix(after[i], "denied") {
					denied, room = true, after[i] == "denied quota_exceeded" && m.expire(at)
				}
			}
		}
		switch {
		case denied && room:
			denied = false
			continue
		case denied:
			for i := range after {
				if strings.HasPrefix(after[i], "granted") {
					after[i] = "left out"
				}
			}
		default:
			m.used, m.holds, m.known = try.used, try.holds, try.known
		}
		return after
	}
	for i := range outcomes {
		if outcomes[i] == "" {
			outcomes[i] = "left out"
		}
	}
	return outcomes
}

// expire ends due reservations, and reports whether the account had any.
func (m *modelQuota) expire(at time.Time) (ended bool) {
	for id, h := range m.holds {
		if h.state == events.StateHeld && !h.until.After(at) {
			h.state, ended = events.StateExpired, true
			m.holds[id], m.known[events.KeyReservationEnd(id)] = h, ""
		}
	}
	return ended
}

func (m *modelQuota) one(at time.Time, r *request) string {
	h, exists := m.holds[r.reservation]
	switch {
	case r.kind == record:
		m.known[r.key()] = r.sent()
		return "recorded"
	case r.kind == domain.Use && m.used+m.held()+r.amount > m.limit, r.kind == domain.Hold && m.used+m.held()+r.amount > m.limit:
		return "denied quota_exceeded"
	case r.kind == domain.Use:
		m.used += r.amount
	case r.kind == domain.Hold:
		h = modelHold{r.amount, at.Add(r.lasts), events.StateHeld}
	case !exists, r.kind == domain.Expire && h.state == events.StateHeld && h.until.After(at):
		return "denied reservation_not_found"
	case h.state != events.StateHeld:
		return "denied reservation_ended"
	case r.kind == domain.Commit && r.amount > h.amount && !r.overage:
		return "denied amount_exceeds_hold"
	case r.kind == domain.Commit:
		m.used, h.state = m.used+r.amount, events.StateCommitted
	case r.kind == domain.Release:
		h.state = events.StateReleased
	case r.kind == domain.Expire:
		h.state = events.StateExpired
	case at.Add(r.lasts).After(h.until):
		h.until = at.Add(r.lasts)
	}
	if r.kind != domain.Use {
		m.holds[r.reservation] = h
	}
	if r.key() != "" {
		m.known[r.key()] = r.sent()
	}
	return fmt.Sprint("granted ", m.used, " ", m.held())
}

// outcomesOf describes the placements of a submission as the model does.
func outcomesOf(s *submission) (outcomes []string) {
	for i, p := range s.places {
		switch p.Status {
		case commands.Appended:
			if s.batch[i].Subject == events.UsageRecorded {
				outcomes = append(outcomes, "recorded")
				continue
			}
			var e struct {
				Used, Held json.Number
				Admitted   struct{ Used, Held json.Number }
			}
			_ = json.Unmarshal(s.batch[i].Payload, &e)
			outcomes = append(outcomes, "granted "+string(e.Used+e.Admitted.Used)+" "+string(e.Held+e.Admitted.Held))
		case commands.Duplicate:
			outcomes = append(outcomes, "duplicate")
		case commands.Conflict:
			outcomes = append(outcomes, "conflict")
		case commands.Denied:
			outcomes = append(outcomes, "denied "+p.Refusal.Code)
		default:
			outcomes = append(outcomes, "left out")
		}
	}
	return outcomes
}

// drawRequests draws the requests of a submission, under few ids.
func drawRequests(rt *rapid.T) (list []request) {
	kind := rapid.SampledFrom([]domain.RequestKind{record, domain.Use, domain.Use, domain.Hold, domain.Hold, domain.Commit, domain.Commit, domain.Extend, domain.Release, domain.Expire}).Draw(rt, "kind")
	n := 1
	if kind == record || kind == domain.Use || kind == domain.Hold || kind == domain.Expire {
		n = rapid.IntRange(1, 3).Draw(rt, "requests")
	}
	reservations := rapid.Permutation([]string{"r", "s", "t", "u", "v", "w"}).Draw(rt, "reservations") // those together have ids of their own
	usage := rapid.Permutation([]string{"a", "b", "c", "d", "e"}).Draw(rt, "ids")
	for i := range n {
		r := request{kind: kind, reservation: reservations[i], usage: usage[i], amount: int64(rapid.IntRange(1, 12).Draw(rt, "amount")),
			lasts: time.Duration(rapid.IntRange(1, 60).Draw(rt, "lasts")) * time.Second, overage: kind == domain.Commit && rapid.Bool().Draw(rt, "overage")}
		if kind == record || kind == domain.Use {
			r.reservation = ""
		}
		list = append(list, r)
	}
	return list
}

// Random groups of recorded usage and of requests of all kinds, with repetitions, conflicts and requests about one reservation in one group and across
// groups, have the outcomes of deciding one after another. Each leaves the accounts and reservations of the model.
func TestP7_GroupsDecideLikeOneAfterAnother(t *testing.T) {
	g, at := &grants{limits: map[uuid.UUID]int64{}}, time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	l, pool := openLogAt(t, migrated(t), func(c *Config) { c.Histories, c.Now = g, func() time.Time { return at } })
	w := newWriter(l, false)
	rapid.Check(t, func(rt *rapid.T) {
		tenants := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
		models := map[uuid.UUID]*modelQuota{}
		for _, tenant := range tenants {
			models[tenant] = newModelQuota(int64(rapid.IntRange(0, 40).Draw(rt, "limit")))
			g.limits[tenant] = models[tenant].limit
		}
		for range rapid.IntRange(1, 5).Draw(rt, "groups") {
			at = at.Add(time.Duration(rapid.IntRange(0, 40).Draw(rt, "later")) * time.Second)
			var subs []*submission
			var want, got []string
			var drawn [][]request
			var kinds []domain.RequestKind
			for range rapid.IntRange(1, 8).Draw(rt, "submissions") {
				tenant, list := rapid.SampledFrom(tenants).Draw(rt, "tenant"), drawRequests(rt)
				drawn = append(drawn, list)
				for _, r := range list {
					kinds = append(kinds, r.kind)
				}
				subs = append(subs, asksOf(tenant, list...))
				want = append(want, models[tenant].submit(at, list)...)
			}
			w.hot = map[int16]time.Time{} // the first attempt is made without a look-up
			if rapid.Bool().Draw(rt, "probing") {
				w.markHot(partitionsOf([]*events.Pending{{TenantID: tenants[0]}, {TenantID: tenants[1]}}))
			}
			w.commit(subs)
			for _, s := range subs {
				must.OK(rt, <-s.done)
				got = append(got, outcomesOf(s)...)
			}
			for i := range want {
				// The same answer, in another group or in this one. No client waits for the answer to an expiry, whose key is looked up only if others are.
				known := want[i] == "expired" || want[i] == "duplicate" && kinds[i] == domain.Expire
				if known && (got[i] == "duplicate" || got[i] == "denied reservation_ended") {
					got[i] = want[i]
				}
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				rt.Fatalf("the outcomes of %+v are\n%s, not\n%s", drawn, strings.Join(got, ", "), strings.Join(want, ", "))
			}
		}
		for _, tenant := range tenants {
			models[tenant].check(rt, pool, tenant)
		}
	})
	checkDense(t, pool)
}

// check compares the tables with the model.
func (m *modelQuota) check(t interface{ Fatalf(string, ...any) }, pool *pgxpool.Pool, tenant uuid.UUID) {
	var used, held int64
	err := pool.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::bigint, coalesce(sum(held), 0)::bigint FROM quota_accounts WHERE tenant_id = $1`, tenant).Scan(&used, &held)
	if err != nil || used != m.used || held != m.held() {
		t.Fatalf("the account has %d used and %d held, not %d and %d: %v", used, held, m.used, m.held(), err)
	}
	rows, err := pool.Query(context.Background(), `SELECT reservation_id, amount, expires_at, state FROM reservations WHERE tenant_id = $1`, tenant)
	if err != nil {
		t.Fatalf("%v", err)
	}
	stored, id, h := map[string]modelHold{}, "", modelHold{}
	_, err = pgx.ForEachRow(rows, []any{&id, &h.amount, &h.until, &h.state}, func() error {
		h.until = h.until.UTC()
		stored[id] = h
		return nil
	})
	if err != nil || !maps.Equal(stored, m.holds) {
		t.Fatalf("the reservations are %v, not %v: %v", stored, m.holds, err)
	}
}
