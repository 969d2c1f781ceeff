package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
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
	"github.com/meterplex/meterplex/events/codec"
)

// grants are histories with one subscription each: of a QUOTA feature "f" with a HARD limit for the tenant.
type grants struct {
	limits     map[uuid.UUID]int64
	thresholds map[uuid.UUID][]domain.Threshold
}

func (g *grants) Known(tenants []uuid.UUID) map[uuid.UUID]domain.TenantHistory {
	h, _ := g.Of(context.Background(), nil, tenants, nil)
	return h
}

func (g *grants) Of(_ context.Context, _ Query, tenants []uuid.UUID, _ []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory, error) {
	all := map[uuid.UUID]domain.TenantHistory{}
	for _, t := range tenants {
		if limit, ok := g.limits[t]; ok {
			all[t] = domain.TenantHistory{History: domain.History{{Subscription: &domain.Subscription{ID: t, TenantID: t, Status: domain.SubscriptionActive, Entitlements: []domain.Grant{{
				Entitlement: domain.Entitlement{Feature: "f", Limit: &limit, LimitBehavior: domain.LimitHard, ResetPeriod: domain.ResetNever}, Type: domain.FeatureQuota}}}}}, Thresholds: g.thresholds[t]}
		}
	}
	return all, nil
}

// requestFor makes a quota request; its event holds the sum of its account.
func requestFor(tenant uuid.UUID, eventID string, amount int) commands.Submitted {
	s := usageEvent(tenant, eventID, amount)
	s.Subject, s.Body, s.Canonical = events.UsageAdmitted, nil, domain.CanonicalRequest
	s.Sent = fmt.Appendf(nil, `{"amount":%d,"eventId":%q}`, amount, eventID)
	s.Quota = &commands.QuotaRequest{Together: 1, LedgerRequest: domain.LedgerRequest{TenantID: tenant, Feature: "f", Amount: int64(amount)},
		Grant: func(p *events.Pending, d *domain.Decision) (err error) {
			used, held := json.Number(d.Used.String()), json.Number(d.Held.String())
			p.OccurredAt, p.Account = d.At.Truncate(time.Microsecond), &events.AccountChange{Feature: "f", PeriodKey: d.PeriodKey, Used: int64(amount)}
			p.Payload, err = codec.EncodePayload(events.UsageAdmitted, &events.Admitted{EventID: eventID, Feature: "f", Amount: int64(amount), Timestamp: p.OccurredAt, Type: "usage",
				Admitted: events.Admission{By: events.ByConsume, SubscriptionID: d.SubscriptionID, FeatureType: d.FeatureType, PeriodKey: d.PeriodKey, Limit: d.Limit, Used: &used, Held: &held}})
			return err
		}}
	return s
}

// modelLog is the log and its accounts, decided one submission after another.
type modelLog struct {
	limits map[uuid.UUID]int64
	used   map[uuid.UUID]int64
	known  map[string]string // by key: the sent amount
}

// submit returns the outcomes of a submission: "granted at SUM", "denied", and so on.
func (m *modelLog) submit(tenant uuid.UUID, batch []commands.Submitted) (outcomes []string) {
	for i := 0; i < len(batch); {
		n := 1
		if batch[i].Quota != nil {
			n = batch[i].Quota.Together
		}
		outcomes = append(outcomes, m.unit(tenant, batch[i:i+n])...)
		i += n
	}
	return outcomes
}

func (m *modelLog) unit(tenant uuid.UUID, unit []commands.Submitted) []string {
	outcomes, used, conflict, denied := make([]string, len(unit)), m.used[tenant], false, -1
	for i := range unit {
		sent, known := m.known[tenant.String()+unit[i].DedupeKey]
		switch own := fmt.Sprint(unit[i].Canonical) + string(unit[i].Sent) + string(unit[i].Body); {
		case known && sent == own:
			outcomes[i] = "duplicate"
		case known:
			outcomes[i], conflict = "conflict", true
		case unit[i].Quota != nil && used+unit[i].Quota.Amount > m.limits[tenant] && denied < 0:
			denied = i
		case unit[i].Quota != nil:
			used += unit[i].Quota.Amount
			outcomes[i] = fmt.Sprint("granted at ", used)
		default:
			outcomes[i] = "recorded"
		}
	}
	if conflict || denied >= 0 {
		for i := range outcomes {
			if outcomes[i] != "duplicate" && outcomes[i] != "conflict" {
				outcomes[i] = "left out"
			}
		}
		if denied >= 0 && !conflict {
			outcomes[denied] = "denied"
		}
		return outcomes
	}
	m.used[tenant] = used
	for i := range unit {
		if outcomes[i] != "duplicate" {
			m.known[tenant.String()+unit[i].DedupeKey] = fmt.Sprint(unit[i].Canonical) + string(unit[i].Sent) + string(unit[i].Body)
		}
	}
	return outcomes
}

// outcomeOf describes a placement as the model does.
func outcomeOf(s *commands.Submitted, p *commands.Placement) string {
	switch p.Status {
	case commands.Appended:
		if s.Quota == nil {
			return "recorded"
		}
		var e events.Admitted
		if json.Unmarshal(s.Payload, &e) != nil {
			return "granted without a payload"
		}
		return "granted at " + string(*e.Admitted.Used)
	case commands.Duplicate:
		return "duplicate"
	case commands.Conflict:
		return "conflict"
	case commands.Denied:
		return "denied"
	}
	return "left out"
}

// Random groups of recorded usage and of quota requests, alone and together, with repetitions and conflicts in one group and across groups,
// have the outcomes that deciding one submission after another has: first fit, all or no grants, and a denied quota request is not the first
// with its key.
func TestP7_GroupsDecideLikeOneAfterAnother(t *testing.T) {
	g := &grants{limits: map[uuid.UUID]int64{}}
	l, pool := openLogAt(t, migrated(t), func(c *Config) { c.Histories = g })
	w := newWriter(l, false)
	rapid.Check(t, func(rt *rapid.T) {
		m := &modelLog{limits: g.limits, used: map[uuid.UUID]int64{}, known: map[string]string{}}
		tenants := []uuid.UUID{uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())}
		for _, tenant := range tenants {
			g.limits[tenant] = int64(rapid.IntRange(0, 30).Draw(rt, "limit"))
		}
		for range rapid.IntRange(1, 4).Draw(rt, "groups") {
			var subs []*submission
			for range rapid.IntRange(1, 6).Draw(rt, "submissions") {
				tenant := rapid.SampledFrom(tenants).Draw(rt, "tenant")
				subs = append(subs, drawSubmission(rt, tenant))
			}
			var want []string
			for _, s := range subs {
				want = append(want, m.submit(s.tenant, s.batch)...)
			}
			w.hot = map[int16]time.Time{} // the first attempt is made without a look-up
			if rapid.Bool().Draw(rt, "probing") {
				w.markHot(partitionsOf([]*events.Pending{{TenantID: tenants[0]}, {TenantID: tenants[1]}}))
			}
			w.commit(subs)
			var got []string
			for _, s := range subs {
				if err := <-s.done; err != nil {
					rt.Fatal(err)
				}
				for i := range s.places {
					got = append(got, outcomeOf(&s.batch[i], &s.places[i]))
				}
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				rt.Fatalf("the outcomes are\n%s, not\n%s", strings.Join(got, ", "), strings.Join(want, ", "))
			}
		}
		for _, tenant := range tenants {
			if used := usedOf(t, pool, tenant); used != strconv.FormatInt(m.used[tenant], 10) {
				rt.Fatalf("the account has %s used, not %d", used, m.used[tenant])
			}
		}
	})
	checkDense(t, pool)
}

func migrated(t *testing.T) string {
	_, _, url := openLog(t)
	return url
}

// drawSubmission draws recorded usage, a quota request, or quota requests together, under few ids.
func drawSubmission(rt *rapid.T, tenant uuid.UUID) *submission {
	s := &submission{tenant: tenant, done: make(chan error, 1), load: newQueueLoad(time.Hour)}
	n := rapid.IntRange(1, 3).Draw(rt, "events")
	ids := rapid.Permutation([]string{"a", "b", "c", "d", "e", "f"}).Draw(rt, "ids") // quota requests together have ids of their own
	together := rapid.Bool().Draw(rt, "asks")
	for i := range n {
		amount := rapid.IntRange(1, 12).Draw(rt, "amount")
		if !together {
			s.batch = append(s.batch, usageEvent(tenant, ids[i], amount))
			continue
		}
		s.batch = append(s.batch, requestFor(tenant, ids[i], amount))
		s.batch[i].Quota.Together = 0
	}
	if together {
		s.batch[0].Quota.Together = n
	}
	s.places = make([]commands.Placement, n)
	return s
}

func usedOf(t testing.TB, q *pgxpool.Pool, tenant uuid.UUID) (used string) {
	t.Helper()
	if err := q.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::text FROM quota_accounts WHERE tenant_id = $1`, tenant).Scan(&used); err != nil {
		t.Fatal(err)
	}
	return used
}

// An event that is known, in the log or earlier in the same append, changes no account, and sums pass the range of bigint.
func TestP7_AKnownEventChangesNoAccount(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	verdict := func(raw int64) events.Pending {
		payload := codec.VerdictJSON(&events.Validated{RawPosition: raw, EventID: "e", Feature: "f", Amount: domain.MaxAmount, Count: 1, ValidatedSubscriptionID: tenant, FeatureType: "QUOTA", PeriodKey: "2026-05"})
		return events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageValidated, TenantID: tenant, DedupeKey: events.KeyValidated(raw),
			Actor: events.Actor{Type: "service", ID: "v"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: payload,
			Account: &events.AccountChange{Feature: "f", PeriodKey: "2026-05", Used: domain.MaxAmount}}
	}
	appendAll := func(pending ...events.Pending) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := l.AppendTx(t.Context(), tx, pending)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if used := usedOf(t, pool, tenant); used != want {
			t.Errorf("%s are used, not %s", used, want)
		}
	}
	appendAll(verdict(1), verdict(2), verdict(1))
	expect("18014398509481982")
	appendAll(verdict(2), verdict(3))
	appendAll(verdict(1), verdict(3))
	expect("27021597764222973")
	var many []events.Pending
	for n := range int64(1100) {
		many = append(many, verdict(100+n))
	}
	appendAll(many...)
	expect("9934940777979313073")
	_ = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, _ = l.AppendTx(t.Context(), tx, []events.Pending{verdict(4)})
		return context.Canceled // rolled back
	})
	expect("9934940777979313073")
}
