package eventlog

import (
	"context"
	"encoding/json"
	"fmt"

	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/must"
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
			all[t] = domain.TenantHistory{History: domain.History{{Subscription: &domain.Subscription{ID: t, TenantID: t,
				Status: domain.SubscriptionActive, Entitlements: []domain.Grant{{
					Entitlement: domain.Entitlement{Feature: "f", Limit: &limit, LimitBehavior: domain.LimitHard,
						ResetPeriod: domain.ResetNever}, Type: domain.FeatureQuota}}}}}, Thresholds: g.thresholds[t]}
		}
	}
	return all, nil
}

// requestFor makes a quota request; its event holds the sum of its account.
func requestFor(tenant uuid.UUID, eventID string, amount int) metering.Submitted {
	s := usageEvent(tenant, eventID, amount)
	s.Subject, s.Payload, s.Canonical = events.UsageAdmitted, nil, intake.CanonicalRequest
	s.Sent = fmt.Appendf(nil, `{"amount":%d,"eventId":%q}`, amount, eventID)
	s.Quota = &metering.QuotaRequest{LedgerRequest: domain.LedgerRequest{TenantID: tenant, Feature: "f",
		Amount: int64(amount)},
		Grant: func(p *events.Pending, d *domain.Decision) (err error) {
			used, held := json.Number(d.Used.String()), json.Number(d.Held.String())
			p.OccurredAt, p.Account = d.At.Truncate(time.Microsecond), &events.AccountChange{Feature: "f", PeriodKey: d.PeriodKey,
				Used: int64(amount)}
			p.Payload, err = codec.EncodePayload(events.UsageAdmitted, &events.Admitted{
				Usage: events.Usage{EventID: eventID, Feature: "f", Amount: int64(amount), Timestamp: p.OccurredAt, Type: "usage"},
				Admitted: events.Admission{By: events.ByConsume, SubscriptionID: d.SubscriptionID, FeatureType: d.FeatureType,
					PeriodKey: d.PeriodKey, Limit: d.Limit, Used: &used, Held: &held}})
			return err
		}}
	return s
}

// outcomeOf describes an outcome as the model does.
func outcomeOf(s *metering.Submitted, p *metering.Outcome) string {
	switch p.Status {
	case metering.Appended:
		if s.Quota == nil {
			return "recorded"
		}
		var e events.Admitted
		if json.Unmarshal(s.Payload, &e) != nil {
			return "granted without a payload"
		}
		return "granted at " + string(*e.Admitted.Used)
	case metering.Duplicate:
		return "duplicate"
	case metering.Conflict:
		return "conflict"
	case metering.Denied:
		return "denied"
	}
	return "left out"
}

func migrated(t *testing.T) string {
	_, _, url := openLog(t)
	return url
}

func usedOf(t testing.TB, q *pgxpool.Pool, tenant uuid.UUID) (used string) {
	t.Helper()
	if err := q.QueryRow(context.Background(), `SELECT coalesce(sum(used), 0)::text FROM quota_accounts WHERE tenant_id = $1`, tenant).
		Scan(&used); err != nil {
		t.Fatal(err)
	}
	return used
}

// An event that is known, in the log or earlier in the same append, changes no account, and sums pass the range of bigint.
func TestP7_AKnownEventChangesNoAccount(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	verdict := func(raw int64) events.Pending {
		payload := codec.VerdictBody(&events.Validated{RawPosition: raw, EventID: "e", Feature: "f", Amount: domain.MaxAmount, Count: 1,
			ValidatedSubscriptionID: tenant, FeatureType: "QUOTA", PeriodKey: "2026-05"})
		return events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageValidated, TenantID: tenant,
			DedupeKey: events.KeyValidated(raw),
			Actor:     events.Actor{Type: "service", ID: "v"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(),
			Payload: payload,
			Account: &events.AccountChange{Feature: "f", PeriodKey: "2026-05", Used: domain.MaxAmount}}
	}
	appendAll := func(pending ...events.Pending) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := l.AppendTx(t.Context(), tx, pending)
			return err
		})
		must.OK(t, err)
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
