package http_test

import (
	"errors"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// ends lets a tenant without billing and without usage be the one that ends.
func (w *offboardingWorld) ends(name string) {
	w.Helper()
	w.a = &account{id: w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil,
		map[string]any{"name": name, "class": "small"}})["id"].(string)}
	w.path = "/api/v1/tenants/" + w.a.id + "/offboard"
}

func (w *offboardingWorld) subscribes() {
	w.Helper()
	w.a.subscription = w.want(201, call{"POST", "/api/v1/tenants/" + w.a.id + "/subscriptions", bootstrap, nil,
		`{"plan":"basic"}`})["id"].(string)
	w.a.key, w.a.keyID = w.key(w.a.id, nil, commands.TenantScopes()...)
}

func (w *testService) feedValidator() {
	w.Helper()
	w.feed(validate.Consumer(newID, new(validate.HistoryReader)))
}

// park lets the aggregator fail on what it has not folded.
func (w *testService) park() {
	w.Helper()
	w.feedValidator()
	w.feed(usage.Consumer(newID, models.DefaultFolds().Usage.With(usage.V1, func(*events.Envelope, events.Validated) (usage.Key, usage.Delta,
		error) {
		return usage.Key{}, usage.Delta{}, errors.New("no figure")
	})))
	w.feed(deadletters.Consumer(models.DefaultFolds().DeadLetters))
}

// retries requests the retry of the tenant's dead letter, which is executed. Nothing folds it.
func (w *offboardingWorld) retries() {
	w.Helper()
	w.want(202, post("/"+w.letter("FAILED")+"/retry", nil))
	letters := &repair.DeadLetters{Store: w.store, Now: time.Now, NewID: newID}
	w.feed(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands,
		Handler: &store.Commands{Log: w.log, Letters: letters}, MaxPerPartition: projections.MaxWithFollowUps})
}

func (w *offboardingWorld) letter(status string) (id string) {
	w.Helper()
	list := w.letters("?status=" + status + "&tenantId=" + w.a.id)
	if len(list) != 1 {
		w.Fatalf("dead letters: %v", list)
	}
	return list[0]["id"].(string)
}

// saga returns the id of the tenant's offboarding, and where it is.
func (w *offboardingWorld) saga() (id, where string) {
	w.Helper()
	w.must(w.pool.QueryRow(w.Context(), `SELECT id, step || ' ' || state || ' ' || coalesce(outcome, '') || ' ' || array_to_string(missing,
		',') FROM sagas
 WHERE kind = 'offboarding' AND tenant_id = $1`, w.a.id).Scan(&id, &where))
	return id, where
}

// waits runs the due step, which waits.
func (w *offboardingWorld) waits(what, where string) {
	w.Helper()
	w.step(false)
	_, got := w.saga()
	w.same(what, got, where)
	w.same("status", w.status(), "SUSPENDED")
}

// Usage that is parked is awaited before its tenant ends, though no period is open that has usage: it is billed once it is retried.
func TestP8_AnOffboardingWaitsForParkedUsage(t *testing.T) {
	last, _ := lastMonth()
	month := time.Now().UTC().Format("2006-01")
	for name, c := range map[string]struct {
		goes   func(w *offboardingWorld)
		states map[string]string
		saga   string
		step   string
	}{
		"retried": {func(w *offboardingWorld) {
			w.lags = true
			w.retries()
			w.waits("with a retry", "drain RUNNING  dead_letters_retrying")
			w.lags = false
			w.fold()
		}, map[string]string{last: "CLOSED", month: "CLOSED"}, "archive COMPLETED success ", "done "},
		"discarded": {func(w *offboardingWorld) {
			w.want(200, post("/"+w.letter("FAILED")+"/discard", `{"reason":"a test's own usage"}`))
		}, map[string]string{last: "CLOSED"}, "archive COMPLETED success ", "done "},
		"waived": {func(w *offboardingWorld) {
			id, _ := w.saga()
			w.refused(w.do(call{"POST", "/api/v1/sagas/" + id + "/retry", bootstrap, nil,
				`{"reason":"r","despite":["dead_letters_retrying"]}`}),
				400, "despite_invalid")
			w.want(202, call{"POST", "/api/v1/sagas/" + id + "/retry", bootstrap, nil,
				`{"reason":"the last invoice is due","despite":["dead_letters"]}`})
		}, map[string]string{last: "CLOSED"}, "archive COMPLETED partial dead_letters", "partial dead_letters"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newOffboardingWorld(t)
			w.ends("B")
			w.subscribes()
			w.accept(w.a, old("counted", 1))
			w.fold()
			w.closed(w.a)
			w.accept(w.a, event("parked", map[string]any{"amount": 3}))
			w.park()
			w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
			w.until("drain", false)
			for range 2 {
				w.waits("with a dead letter", "drain RUNNING  dead_letters")
			}
			c.goes(w)
			w.until("", true)
			w.same("status", w.status(), "ARCHIVED")
			w.same("periods", w.states(), c.states)
			_, got := w.saga()
			w.same("the saga", got, c.saga)
			w.must(w.pool.QueryRow(t.Context(),
				`SELECT concat(payload(l)->>'outcome', ' ', payload(l)->>'detail') FROM event_log_rows l WHERE tenant_id = $1
					AND subject = $2 AND payload(l)->>'step' = 'archived'`,
				w.a.id, events.OffboardingStepped).Scan(&got))
			w.same("the event", got, c.step)
			if name == "retried" {
				w.same("frozen", w.lines(periodsOf(w.a)+"/"+month, "feature", "frozen", "unreconciled"), []string{"api_calls 3 0"})
			}
		})
	}
}

// A rejected event that is retried while its tenant ends counts before the tenant is archived, however late its verdict is folded.
func TestP8_AnOffboardingWaitsForTheVerdictOfARetry(t *testing.T) {
	w := newOffboardingWorld(t)
	w.ends("B")
	last, at := lastMonth()
	when, err := time.Parse(time.RFC3339, at)
	w.must(err)
	w.rejectionsAt(w.a, "api_calls", 1, when) // without a subscription
	w.subscribes()
	push := w.push(w.a.id, 9, "FAILED")
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("push", false)
	w.waits("with a push", "push RUNNING  push "+push+" FAILED")
	w.lags = true
	w.retries()
	w.exec(`UPDATE pushes SET state = 'DELIVERED', delivered_at = now(), next_at = NULL WHERE id = $1`, push)
	w.until("archive", false)
	w.waits("with a retry that has no verdict", "archive RUNNING  not_aggregated")
	w.feedValidator()
	w.waits("with a verdict that is not folded", "archive RUNNING  not_aggregated")
	w.park()
	w.waits("with a verdict that is parked", "archive RUNNING  dead_letters")
	w.retries()
	w.waits("with the retry of a verdict", "archive RUNNING  not_aggregated,dead_letters_retrying")
	w.lags = false
	w.fold()
	w.same("periods", w.states(), map[string]string{last: "OPEN"})
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
	w.same("periods", w.states(), map[string]string{last: "CLOSED"})
	w.same("frozen", w.lines(periodsOf(w.a)+"/"+last, "feature", "frozen", "unreconciled"), []string{"api_calls 1 0"})
}
