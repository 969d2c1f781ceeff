package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// unitLimit is the HARD limit of the feature units, which usage events may not pass either.
const unitLimit = 1000

// unitsPath begins the paths of requests against the limit of units.
const unitsPath = "/api/v1/entitlements/units"

// limitsTest is a deployment of two instances whose tenants have a HARD limit of units.
type limitsTest struct {
	*deployment
	api   *killableInstance // decides requests
	whole *killableInstance // has all roles
}

// newLimitsTest has PostgreSQL as the pipe: a killed member of a Kafka group keeps its partitions for ten seconds.
func newLimitsTest(t testing.TB) *limitsTest {
	t.Helper()
	d := &limitsTest{deployment: newDeployment(t)}
	d.pipe = "postgres"
	d.whole, d.api = d.killable(""), d.killable("api")
	d.limitedPlans(d.whole.instance)
	return d
}

// limitedPlans defines units, and the plan of createTenants that limits them.
func (w *deployment) limitedPlans(at *instance) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPut, at, "/api/v1/features/units", object{"name": "Units", "type": "QUOTA", "unit": "each"}, nil, http.StatusCreated)
	w.putPlan(at, "all", http.StatusCreated, unitLimit)
}

// putPlan defines a plan that limits units.
func (w *deployment) putPlan(at *instance, plan string, want, limit int) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPut, at, "/api/v1/plans/"+plan, object{"name": plan, "entitlements": []object{
		{"feature": "units", "limit": limit, "limitBehavior": "HARD", "resetPeriod": "NEVER", "onIngest": "enforce"}}}, nil, want)
}

// limitedTenant creates a tenant whose key may send every kind of request about limits, to each of some instances.
func (w *deployment) limitedTenant(at *instance, others ...*instance) *tenant {
	w.t.Helper()
	x := w.createTenants(at, 1)[0]
	x.key = w.keyOf(at, x, "entitlements:reserve", "entitlements:read", "usage:write")
	for _, other := range others {
		w.awaitKeys(other, []*tenant{x})
	}
	return x
}

// request is a request against a limit, its first answer, and how often it was sent without an answer.
type request struct {
	method, path string
	body         object
	amount       int64

	status int
	answer []byte
	lost   int
}

func consumeOf(id string, amount int64) *request {
	return &request{method: http.MethodPost, path: unitsPath + "/consume", body: object{"eventId": id, "amount": amount}, amount: amount}
}

func holdOf(id string, amount int64, seconds int) *request {
	return &request{method: http.MethodPost, path: unitsPath + "/reservations", body: object{"reservationId": id, "amount": amount, "ttlSeconds": seconds}, amount: amount}
}

func commitOf(id string, amount int64) *request {
	return &request{method: http.MethodPost, path: unitsPath + "/reservations/" + id + "/commit", body: object{"eventId": id + "-usage", "amount": amount}, amount: amount}
}

func releaseOf(id string) *request {
	return &request{method: http.MethodDelete, path: unitsPath + "/reservations/" + id}
}

// ingestOf sends one usage event.
func ingestOf(id string, amount int64, at time.Time) *request {
	return &request{method: http.MethodPost, path: "/api/v1/usage/events", amount: amount,
		body: object{"events": []event{{EventID: id, Feature: "units", Amount: amount, Timestamp: at.UTC().Truncate(time.Microsecond)}}}}
}

// fresh returns the same request without its answer.
func (r *request) fresh() *request {
	return &request{method: r.method, path: r.path, body: r.body, amount: r.amount}
}

// send sends a request until it is answered: again to the same instance if that refuses it for now, to the next one
// after a lost answer. It reports whether there is an answer.
func (w *deployment) send(x *tenant, r *request, to ...*instance) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for n := 0; ctx.Err() == nil; {
		var in any
		if r.body != nil {
			in = r.body
		}
		status, body, err := w.call(ctx, x.key, r.method, to[n%len(to)].url()+r.path, in)
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			if status >= 500 {
				w.t.Errorf("%s %s: %d %s", r.method, r.path, status, body)
			}
			r.status, r.answer = status, body
			return true
		}
		r.lost++
		if err != nil {
			n++
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	w.t.Errorf("%s %s was never answered", r.method, r.path)
	return false
}

// mustSend is send for a request that must be answered with a status.
func (w *deployment) mustSend(x *tenant, r *request, want int, to ...*instance) {
	w.t.Helper()
	if w.send(x, r, to...) && r.status != want {
		w.t.Fatalf("%s %s: %d, want %d: %s", r.method, r.path, r.status, want, r.answer)
	}
}

// outcome has the members of answers that tests look at.
type outcome struct {
	Code, Reason, State, Position string
	Limit, Used, Held, Remaining  int64
	ExpiresAt                     time.Time
	Events                        []verdict
}

func (r *request) outcome(t testing.TB) (o outcome) {
	t.Helper()
	if err := json.Unmarshal(r.answer, &o); err != nil {
		t.Errorf("%s %s: %v: %s", r.method, r.path, err, r.answer)
	}
	if len(o.Events) == 1 { // refusals of usage events are verdicts
		o.Code, o.Position = o.Events[0].Code, o.Events[0].Position
	}
	return o
}

// granted reports whether the answer grants the request.
func (r *request) granted(t testing.TB) bool {
	t.Helper()
	o := r.outcome(t)
	if o.Code != "" && o.Code != "quota_exceeded" {
		t.Errorf("%s %s: %d %s", r.method, r.path, r.status, r.answer)
	}
	return o.Code == "" && r.status < 300
}

// account is the account of units after an event.
type account struct{ position, used, held int64 }

// accountEvent has the members of the events that change an account, of whatever kind.
type accountEvent struct {
	Feature, FeatureType, ReservationID string
	Amount                              int64
	Used, Held                          json.Number
	Admitted                            json.RawMessage
}

// grant has the members of an admission.
type grant struct {
	ReservationID string
	HeldAmount    int64
	Used, Held    json.Number
}

// fold returns the account of units after each event of a tenant. It checks that each event names the account after
// it, and that each reservation ends once.
func (w *deployment) fold(x *tenant) (states []account) {
	w.t.Helper()
	rows, err := w.sql.Query(w.t.Context(), `SELECT position, subject, l.payload::text FROM event_log_rows l WHERE tenant_id = $1 AND subject IN (2, 8, 60, 61, 62, 63) ORDER BY position`, x.id)
	must.OK(w.t, err)
	states = []account{{}}
	open := map[string]int64{} // the amount of each reservation
	ended := map[string]bool{}
	var subject int
	var payload string
	now := account{}
	_, err = pgx.ForEachRow(rows, []any{&now.position, &subject, &payload}, func() error {
		var e accountEvent
		if err := json.Unmarshal([]byte(payload), &e); err != nil {
			return err
		}
		if e.Feature != "units" {
			return nil
		}
		named := grant{e.ReservationID, e.Amount, e.Used, e.Held}
		if subject == 8 {
			named = grant{}
			if err := json.Unmarshal(e.Admitted, &named); err != nil {
				return err
			}
		}
		ends := subject == 62 || subject == 63 || subject == 8 && named.ReservationID != ""
		if ends {
			if ended[named.ReservationID] || open[named.ReservationID] != named.HeldAmount {
				w.t.Errorf("%d ends the reservation %s of %d, which holds %d", now.position, named.ReservationID, named.HeldAmount, open[named.ReservationID])
			}
			ended[named.ReservationID] = true
			now.held -= named.HeldAmount
		}
		switch {
		case subject == 2 && string(e.Admitted) == "true": // counted when it was admitted
			return nil
		case subject == 2, subject == 8:
			now.used += e.Amount
		case subject == 60:
			open[e.ReservationID] = e.Amount
			now.held += e.Amount
		}
		if subject != 2 && (string(named.Used) != strconv.FormatInt(now.used, 10) || string(named.Held) != strconv.FormatInt(now.held, 10)) {
			w.t.Errorf("%d names %s used and %s held, the events before it leave %d and %d", now.position, named.Used, named.Held, now.used, now.held)
		}
		states = append(states, now)
		return nil
	})
	must.OK(w.t, err)
	return states
}

// accountAt asks an instance for the account of units, with the head of its snapshot as its position.
func (w *deployment) accountAt(ctx context.Context, at *instance, x *tenant) (account, error) {
	var page struct {
		Data         []struct{ Used, Held int64 }
		HeadPosition string
	}
	if err := w.get(ctx, w.operator, at, "/api/v1/quota/accounts?feature=units&tenantId="+x.id, &page); err != nil {
		return account{}, err
	}
	a := account{position: numberOf(page.HeadPosition)}
	if len(page.Data) > 1 {
		return account{}, fmt.Errorf("%d accounts", len(page.Data))
	}
	for _, d := range page.Data {
		a.used, a.held = d.Used, d.Held
	}
	return a, nil
}

// checkAccount checks that the account in the table is the last of a fold.
func (w *deployment) checkAccount(at *instance, x *tenant, states []account) {
	w.t.Helper()
	last := states[len(states)-1]
	got, err := w.accountAt(w.t.Context(), at, x)
	if err != nil || got.used != last.used || got.held != last.held {
		w.t.Errorf("the account has %d used and %d held, the log %d and %d: %v", got.used, got.held, last.used, last.held, err)
	}
}
