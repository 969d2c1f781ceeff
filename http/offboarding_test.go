package http_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/commands/offboarding"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/infra/postgres/store/offboardings"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/tier"
)

func (w *testService) offboarding() *offboarding.Commands {
	return &offboarding.Commands{Store: &offboardings.Offboardings{Store: w.store}, Quotas: w.quotas(), Periods: w.periods(),
		Now:   time.Now,
		NewID: newID, Logger: slog.New(slog.DiscardHandler)}
}

func (w *testService) quotas() *metering.Quotas {
	return &metering.Quotas{Log: w.log, Reservations: w.store, Now: time.Now, NewID: func(time.Time) uuid.UUID { return newID() }}
}

// offboardingWorld is a service with a tenant that has usage of two periods, a limit without an end, a reservation and billing.
type offboardingWorld struct {
	*testService
	a        *account
	path     string
	provider *countingProvider
	kind     commands.SagaKind // whose commits may be cut
	cut      func(step string) // is called before each run of a step; may be nil
	lags     bool              // nothing folds what steps append
}

func newOffboardingWorld(t *testing.T, change ...func(*http.Server)) *offboardingWorld {
	w := &offboardingWorld{testService: newTestService(t, change...)}
	w.provider = &countingProvider{w: w.testService, counts: map[string]*big.Int{}}
	w.kind = w.offboarding().OffboardingKind()
	w.catalogue()
	w.want(201, call{"PUT", "/api/v1/features/seats", bootstrap, nil, `{"name":"Seats","type":"QUOTA"}`})
	w.want(201, call{"PUT", "/api/v1/plans/ending", bootstrap, nil,
		`{"name":"Ending","entitlements":[{"feature":"api_calls","limit":50000,"resetPeriod":"MONTHLY"},{"feature":"seats","limit":50,` +
			`"resetPeriod":"NEVER"}]}`})
	w.a = &account{}
	w.a.id = w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"A","class":"small"}`})["id"].(string)
	w.a.subscription = w.want(201, call{"POST", "/api/v1/tenants/" + w.a.id + "/subscriptions", bootstrap, nil,
		`{"plan":"ending"}`})["id"].(string)
	w.a.key, w.a.keyID = w.key(w.a.id, nil, commands.TenantScopes()...)
	w.want(200, call{"PUT", "/api/v1/tenants/" + w.a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_1"}`})
	w.accept(w.a, old("one", 10), event("two", map[string]any{"amount": 5}),
		event("three", map[string]any{"feature": "seats", "amount": 3}))
	w.want(201, call{"POST", "/api/v1/entitlements/api_calls/reservations", w.a.key, nil,
		`{"reservationId":"held","amount":7,"ttlSeconds":3600}`})
	w.fold()
	w.path = "/api/v1/tenants/" + w.a.id + "/offboard"
	return w
}

// step runs the step of the offboarding that is due once, and the rest of the service. After a lost COMMIT, which the caller simulates by
// lose, the saga keeps its step.
func (w *offboardingWorld) step(lose bool) (step string) {
	w.Helper()
	w.exec(`UPDATE sagas SET next_at = now() WHERE kind = 'offboarding' AND ended_at IS NULL`)
	kind := w.kind
	kind.Run = func(ctx context.Context, s *domain.Saga) (result domain.SagaResult, err error) {
		if w.cut == nil {
			result, err = w.kind.Run(ctx, s)
		} else {
			w.cut(s.Step)
			for range 4 { // as the runner does after a failure
				if result, err = w.kind.Run(ctx, s); err == nil {
					break
				}
			}
		}
		if !lose || err != nil {
			return result, err
		}
		other := make(chan error, 1) // the result is lost: two other instances repeat the committed step at once
		go func() {
			_, err := w.kind.Run(ctx, s)
			other <- err
		}()
		result, err = w.kind.Run(ctx, s)
		return result, errors.Join(err, <-other)
	}
	s := w.runStep([]commands.SagaKind{kind}, w.must)
	if s == nil {
		return ""
	}
	if !w.lags {
		w.fold()
	}
	w.runSagas()
	w.runPushes(w.provider)
	return s.Step
}

// until runs steps until one is the next, or none is left.
func (w *offboardingWorld) until(step string, lose bool) {
	w.Helper()
	for range 200 {
		var next string
		w.must(w.pool.QueryRow(w.Context(),
			`SELECT CASE WHEN ended_at IS NULL THEN step ELSE '' END FROM sagas WHERE kind = 'offboarding' ORDER BY created_at DESC LIMIT 1`).Scan(&next))
		if next == step {
			return
		}
		w.step(lose)
	}
	w.Fatalf("the step %q does not come: %v", step, w.want(200, call{method: "GET", path: w.path, key: bootstrap}))
}

// stepped lists the steps that the log has.
func (w *offboardingWorld) stepped() (steps []string) {
	w.Helper()
	rows, err := w.pool.Query(w.Context(),
		`SELECT payload(l)->>'step' FROM event_log_rows l WHERE subject = $1 AND tenant_id = $2 ORDER BY position`,
		events.OffboardingStepped,
		w.a.id)
	w.must(err)
	defer rows.Close()
	for rows.Next() {
		var step string
		w.must(rows.Scan(&step))
		steps = append(steps, step)
	}
	w.must(rows.Err())
	return steps
}

func (w *offboardingWorld) status() any {
	w.Helper()
	return w.want(200, call{method: "GET", path: "/api/v1/tenants/" + w.a.id, key: bootstrap})["status"]
}

func (w *offboardingWorld) states() map[string]string {
	w.Helper()
	states := map[string]string{}
	for _, p := range w.want(200, call{method: "GET", path: periodsOf(w.a), key: bootstrap})["data"].([]any) {
		states[fmt.Sprint(p.(map[string]any)["periodKey"])] = fmt.Sprint(p.(map[string]any)["state"])
	}
	return states
}

var sagaStepsOfOffboarding = []string{"suspend", "drain", "close", "push", "export", "archive"}

// A tenant is offboarded: what is due is pushed, nothing of it is open, and its keys end. Also if the result of each step is lost.
func TestP8_OffboardingOfATenant(t *testing.T) {
	for _, lose := range []bool{true, false}[:tier.Draws(t, 1, 2)] {
		t.Run(fmt.Sprintf("lost results %v", lose), func(t *testing.T) {
			w := newOffboardingWorld(t)
			last, _ := lastMonth()
			threshold := w.thresholdOf(w.a)
			w.refused(w.do(call{method: "GET", path: w.path, key: bootstrap}), 404, "offboarding_not_found")
			w.refused(w.do(call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"r"}`}), 404, "offboarding_not_found")
			w.refused(w.do(call{"POST", w.path, bootstrap, nil, `{"reason":" "}`}), 400, "reason_required")
			// The earlier key of a rotation is valid for an hour more, until the tenant ends.
			w.want(201, call{"POST", "/api/v1/tenants/" + w.a.id + "/api-keys/" + w.a.keyID + "/rotate", bootstrap, nil,
				`{"overlapSeconds":3600}`})
			header := map[string]string{"Idempotency-Key": "end"}
			first := w.want(202, call{"POST", w.path, bootstrap, header, `{"reason":"the contract ended"}`})
			w.same("a repetition", w.want(202, call{"POST", w.path, bootstrap, header, `{"reason":"the contract ended"}`})["id"],
				first["id"])
			w.refused(w.do(call{"POST", w.path, bootstrap, nil, `{"reason":"again"}`}), 409, "tenant_offboarding")
			for _, step := range sagaStepsOfOffboarding {
				w.until(step, lose)
				for _, c := range []call{
					{"PATCH", "/api/v1/tenants/" + w.a.id, bootstrap, nil, `{"status":"ACTIVE"}`},
					{"POST", "/api/v1/tenants/" + w.a.id + "/api-keys", bootstrap, nil, `{"name":"k","scopes":["usage:read"]}`},
					{"POST", "/api/v1/tenants/" + w.a.id + "/api-keys/" + w.a.keyID + "/rotate", bootstrap, nil, `{"overlapSeconds":0}`},
					{"PATCH", "/api/v1/tenants/" + w.a.id + "/subscriptions/" + w.a.subscription, bootstrap, nil, `{"status":"CANCELLED"}`},
					{"PUT", "/api/v1/tenants/" + w.a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_2"}`},
					{"POST", "/api/v1/tenants/" + w.a.id + "/thresholds", bootstrap, nil, `{"percent":90}`},
					{"DELETE", "/api/v1/tenants/" + w.a.id + "/thresholds/" + threshold, bootstrap, nil, nil},
					{"POST", periodsOf(w.a) + "/" + last + "/reopen", bootstrap, nil, `{"reason":"r"}`},
				} {
					w.refused(w.do(c), 409, "tenant_offboarding")
				}
				if step != "suspend" {
					w.refused(w.do(call{"POST", "/api/v1/usage/events", w.a.key, nil, batch(event("late-"+step, nil))}), 403,
						"tenant_suspended")
				}
			}
			w.until("", lose)
			w.refused(w.do(call{"POST", "/api/v1/usage/events", w.a.key, nil, batch(event("late", nil))}), 401, "unauthenticated")
			month := time.Now().UTC().Format("2006-01")
			w.same("status", w.status(), "ARCHIVED")
			w.same("periods", w.states(), map[string]string{last: "CLOSED", month: "CLOSED", "lifetime": "CLOSED"})
			w.same("the provider's sum", w.provider.sum(), 18)
			w.same("steps", w.stepped(), []string{"requested", "suspended", "drained", "closed", "pushed", "exported", "archived"})
			got := w.want(200, call{method: "GET", path: w.path, key: bootstrap})
			w.same("the end", valuesOf(got, "state", "step"), "ARCHIVED archived")
			w.same("closed early", got["closedEarly"], []any{month, "lifetime"})
			w.manifestIsTrue(got)
			var held, inForce, usable int
			w.must(w.pool.QueryRow(w.Context(), `SELECT (SELECT count(*) FROM reservations WHERE tenant_id = $1 AND state = 'HELD'),
 (SELECT count(*) FROM subscriptions WHERE tenant_id = $1 AND status <> 'CANCELLED'), (SELECT count(*) FROM api_keys WHERE tenant_id = $1
 AND (revoked_at IS NULL OR revoked_at > now()))`, w.a.id).Scan(&held, &inForce, &usable))
			w.same("held, in force, usable", []int{held, inForce, usable}, []int{0, 0, 0})
			w.refused(w.do(call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"r"}`}), 409, "offboarding_ended")
			w.refused(w.do(call{"POST", w.path, bootstrap, nil, `{"reason":"r"}`}), 409, "tenant_offboarding")
			w.refused(w.do(call{"PATCH", "/api/v1/tenants/" + w.a.id, bootstrap, nil, `{"name":"B"}`}), 409, "tenant_offboarding")
			w.refused(w.do(call{"POST", periodsOf(w.a) + "/2020-01/close", bootstrap, nil, `{"reason":"r"}`}), 409, "tenant_offboarding")
			w.want(200, call{"POST", periodsOf(w.a) + "/" + last + "/close", bootstrap, nil, `{"reason":"r"}`}) // is closed already
		})
	}
}

// manifestIsTrue compares the manifest with the snapshots and the log.
func (w *offboardingWorld) manifestIsTrue(got map[string]any) {
	w.Helper()
	var manifest, hash, detail string
	w.must(w.pool.QueryRow(w.Context(), `SELECT o.manifest, encode(sha256(convert_to(o.manifest, 'UTF8')), 'hex'),
 (SELECT payload(l)->>'detail' FROM event_log_rows l WHERE l.tenant_id = $1 AND l.dedupe_key = 'o/' || o.id || '/exported')
 FROM offboardings o WHERE tenant_id = $1`, w.a.id).Scan(&manifest, &hash, &detail))
	w.same("the hash", got["manifestHash"], hash)
	w.same("the event's detail", detail, "sha256 "+hash)
	m, err := domain.DecodeManifest([]byte(manifest))
	w.must(err)
	for _, s := range m.Snapshots {
		period := w.want(200, call{method: "GET", path: periodsOf(w.a) + "/" + s.PeriodKey, key: bootstrap})
		w.same("figures of "+s.PeriodKey, s.SHA256, period["figuresHash"])
	}
	w.same("snapshots", len(m.Snapshots), 3)
	var count int64
	w.must(w.pool.QueryRow(w.Context(), `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND position <= $2`, w.a.id,
		m.Log.Last.Number).Scan(&count))
	w.same("events", m.Log.Events, count)
}

// A cancelled offboarding leaves the tenant as it was: at each step the tenant is active again, the periods that were closed early are
// open, its keys work,
// and its webhooks have the deliveries that wait.
func TestP8_OffboardingCancelledAtEachStep(t *testing.T) {
	for n, step := range sagaStepsOfOffboarding {
		for _, lose := range []bool{n%2 == 0, n%2 != 0}[:tier.Draws(t, 1, 2)] {
			t.Run(fmt.Sprintf("%s lost %v", step, lose), func(t *testing.T) {
				if step == "push" || step == "export" { // are between two others that close nothing
					tier.AtSize(t)
				}
				w := newOffboardingWorld(t)
				enabled, disabled, _ := w.hooks()
				w.cancelledAt(step, lose)
				w.same("the enabled webhook", w.shown(enabled), "ENABLED <nil> 1 PENDING")
				w.same("the disabled webhook", w.shown(disabled), "DISABLED <nil> 1")
				w.want(201, call{"POST", enabled + "/rotate", bootstrap, nil, `{}`})
				w.want(200, call{"PATCH", disabled, bootstrap, nil, `{"status":"ENABLED"}`})
				w.want(204, call{method: "DELETE", path: enabled, key: w.a.key})
				w.accept(w.a, event("after", map[string]any{"amount": 2}))
				w.fold()
				w.refused(w.do(call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"r"}`}), 409, "offboarding_ended")
				w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"a second time"}`})
				w.until("", false)
				w.same("status", w.status(), "ARCHIVED")
				w.same("the provider's sum", w.provider.sum(), 20)
			})
		}
	}
}

// cancelledAt offboards the tenant up to a step, cancels that, and checks the end.
func (w *offboardingWorld) cancelledAt(step string, lose bool) {
	w.Helper()
	last, _ := lastMonth()
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until(step, false)
	if step == "close" {
		w.step(false) // the closes are requested
	}
	_, err := w.pool.Exec(w.Context(),
		`UPDATE sagas SET next_at = now() + interval '1 hour' WHERE kind = 'offboarding'`) // as after many failures
	w.must(err)
	header := map[string]string{"Idempotency-Key": "stay"}
	for range 2 {
		w.same("the state", w.want(202, call{"POST", w.path + "/cancel", bootstrap, header, `{"reason":"they stay"}`})["state"],
			"CANCELLING")
	}
	w.same("the state", w.want(202, call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"once more"}`})["cancelReason"],
		"they stay")
	var due bool
	w.must(w.pool.QueryRow(w.Context(), `SELECT next_at <= now() FROM sagas WHERE kind = 'offboarding'`).Scan(&due))
	w.same("the saga is due", due, true)
	w.until("", lose)
	w.same("status", w.status(), "ACTIVE")
	states := w.states()
	w.same("open periods", []string{states[now()[:7]], states["lifetime"]}, []string{"OPEN", "OPEN"})
	w.same("the period that has ended is closed", states[last] == "CLOSED", step != "suspend" && step != "drain")
	_, saga := w.saga()
	w.same("the saga", strings.Fields(saga)[1:], "[COMPENSATED compensated]")
	steps := w.stepped()
	w.same("the last steps", steps[len(steps)-2:], []string{"cancelled", "reverted"})
}

// A COMMIT of each step is lost, before or after it happened: each step has one effect, also those that revert.
func TestP8_OffboardingWhoseCommitsAreLost(t *testing.T) {
	for name, of := range localtest.LostCommits {
		for _, cancelled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cancelled %v", name, cancelled), func(t *testing.T) {
				if cancelled != strings.HasPrefix(name, "request") {
					tier.AtSize(t)
				}
				w := newOffboardingWorld(t)
				c, _, cut := w.throughCutter(t, 0)
				x := w.offboarding()
				x.Store = &offboardings.Offboardings{Store: cut}
				w.kind = x.OffboardingKind()
				w.cut = func(step string) {
					n := int32(1)
					if step == "export" { // its first COMMIT ends the read of the manifest
						n = 2
					}
					of(c).Store(n)
				}
				w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
				if cancelled {
					w.until("archive", false)
					w.want(202, call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"they stay"}`})
				}
				w.until("", false)
				if c.Reached.Load() < 8 {
					t.Errorf("%d COMMITs were cut", c.Reached.Load())
				}
				steps := []string{"requested", "suspended", "drained", "closed", "pushed", "exported", "archived"}
				status := "ARCHIVED"
				if cancelled {
					steps, status = append(steps[:6:6], "cancelled", "reverted"), "ACTIVE"
				}
				w.same("steps", w.stepped(), steps)
				w.same("status", w.status(), status)
				w.same("the provider's sum", w.provider.sum(), 18)
				var changes, revoked int
				w.must(w.pool.QueryRow(w.Context(),
					`SELECT count(*) FILTER (WHERE subject = $2), count(*) FILTER (WHERE subject = $3) FROM event_log_rows
						WHERE tenant_id = $1`,
					w.a.id, events.TenantChanged, events.APIKeyRevoked).Scan(&changes, &revoked))
				w.same("changes of the tenant", changes, 3) // its billing, SUSPENDED, and the end
				w.same("revoked keys", revoked, map[bool]int{false: 1, true: 0}[cancelled])
			})
		}
	}
}

// A push that is open again before the end is waited for; a snapshot that is not in the manifest gets into a second one.
func TestP8_OffboardingLooksAgainBeforeTheEnd(t *testing.T) {
	w := newOffboardingWorld(t)
	last, _ := lastMonth()
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("archive", false)
	push := w.push(w.a.id, 9, "FAILED")
	for range 4 {
		w.step(false)
	}
	var waits string
	w.must(w.pool.QueryRow(w.Context(),
		`SELECT step || ' ' || array_to_string(missing, ',') FROM sagas WHERE kind = 'offboarding'`).Scan(&waits))
	w.same("it waits for", waits, "push push "+push+" FAILED")
	w.same("status", w.status(), "SUSPENDED")
	w.exec(`UPDATE pushes SET state = 'DELIVERED', delivered_at = now(), next_at = NULL WHERE id = $1`, push)
	w.until("archive", false)
	// A period that is reopened meanwhile is closed again by the next run.
	period := periodsOf(w.a) + "/" + last
	w.exec(`UPDATE offboardings SET state = 'CANCELLED', ended_at = now()`)
	w.want(200, call{"POST", period + "/reopen", bootstrap, nil, `{"reason":"r"}`})
	w.exec(`UPDATE offboardings SET state = 'RUNNING', ended_at = NULL`)
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
	w.same("steps", w.stepped(), []string{"requested", "suspended", "drained", "closed", "pushed", "exported", "exported", "archived"})
	w.same("snapshot", w.want(200, call{method: "GET", path: period, key: bootstrap})["snapshot"], 2)
}
