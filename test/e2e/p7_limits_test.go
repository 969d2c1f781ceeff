package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// unitLimit is the HARD limit of the feature units, which usage events may not pass either.
const unitLimit = 1000

// limitUnits defines units, and the plan of createTenants that limits them.
func limitUnits(w *deployment, at *instance) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPut, at, "/api/v1/features/units", object{"name": "Units", "type": "QUOTA", "unit": "each"}, nil,
		http.StatusCreated)
	w.ask(w.operator, http.MethodPut, at, "/api/v1/plans/all", object{"name": "all", "entitlements": []object{
		{"feature": "units", "limit": unitLimit, "limitBehavior": "HARD", "resetPeriod": "NEVER", "onIngest": "enforce"}}}, nil,
		http.StatusCreated)
}

// limitedTenant creates a tenant whose key may send every kind of request about limits, to each of some instances.
func limitedTenant(w *deployment, at *instance, others ...*instance) *tenant {
	w.t.Helper()
	x := w.createTenants(at, 1)[0]
	x.key = w.keyOf(at, x, "entitlements:reserve", "entitlements:read", "usage:write")
	for _, other := range others {
		awaitKeys(w, other, []*tenant{x})
	}
	return x
}

// request is a request against the limit of units, its first answer, and how often it was sent without an answer.
type request struct {
	method, path string
	body         any
	amount       int64

	status int
	answer []byte
	lost   int
}

func aboutUnits(method, path string, amount int64, body any) *request {
	return &request{method: method, path: "/api/v1/entitlements/units" + path, amount: amount, body: body}
}

func consumeOf(id string, amount int64) *request {
	return aboutUnits(http.MethodPost, "/consume", amount, object{"eventId": id, "amount": amount})
}

func holdOf(id string, amount int64, seconds int) *request {
	return aboutUnits(http.MethodPost, "/reservations", amount, object{"reservationId": id, "amount": amount, "ttlSeconds": seconds})
}

func commitOf(id string, amount int64) *request {
	return aboutUnits(http.MethodPost, "/reservations/"+id+"/commit", amount, object{"eventId": id + "-usage", "amount": amount})
}

// ingestOf sends one usage event.
func ingestOf(id string, amount int64) *request {
	e := event{EventID: id, Feature: "units", Amount: amount, Timestamp: time.Now().UTC().Truncate(time.Microsecond)}
	return &request{method: http.MethodPost, path: "/api/v1/usage/events", amount: amount, body: object{"events": []event{e}}}
}

// request sends a request until it is answered: again to the same instance if that refuses it for now, to the next one
// after a lost answer.
func (x *tenant) request(w *deployment, r *request, to ...*instance) *request {
	for end, n := time.Now().Add(patience), 0; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		status, body, err := w.call(w.t.Context(), x.key, r.method, to[n%len(to)].url()+r.path, r.body)
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			if r.status, r.answer = status, body; status >= 500 {
				w.t.Errorf("%s %s: %d %s", r.method, r.path, status, body)
			}
			return r
		}
		if r.lost++; err != nil {
			n++
		}
	}
	w.t.Errorf("%s %s was never answered", r.method, r.path)
	return r
}

// outcome has the members of answers that tests look at.
type outcome struct {
	Code, State, Position        string
	Limit, Used, Held, Remaining int64
	Events                       []verdict
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

// presentState matches the members of the answer to a hold that tell its present state.
var presentState = regexp.MustCompile(`"(state|released)":[^,}]*,?`)

// sameAnswer reports whether a granted request that was sent again got its first answer: byte for byte, except for usage events, which
// are duplicates at their first position, and for holds, whose state is the present one.
func sameAnswer(t testing.TB, first, again *request) bool {
	t.Helper()
	switch {
	case strings.HasSuffix(first.path, "/usage/events"):
		o := again.outcome(t)
		return again.status == first.status && o.Events[0].Status == "duplicate" && o.Position == first.outcome(t).Position
	case strings.HasSuffix(first.path, "/reservations"):
		return again.status == http.StatusOK && bytes.Equal(presentState.ReplaceAll(first.answer, nil),
			presentState.ReplaceAll(again.answer, nil))
	}
	return again.status == http.StatusOK && first.status == http.StatusOK && bytes.Equal(first.answer, again.answer)
}

// stampede is 200 clients that want the last 50 units of a tenant at once, while an instance dies.
type stampede struct {
	name, point string // the kill point
	pass        int    // of the kill point, the one at which the instance dies
	whole       bool   // the instance with all roles dies, not the other one
	send        func(send func(*request) *request, id string, amount int64) []*request
	frees       bool // clients commit less than they hold, or release it, so that a refused amount may fit later
}

const (
	stampedeClients = 200
	lastUnits       = 50
	// lateClients begin at the instance that survives. Their amounts, at most lateAmount each, leave some units for the instance that
	// dies, so that it grants a request and passes the kill point.
	lateClients, lateAmount = 20, 2
)

func stampedes() (all []stampede) {
	one := func(of func(id string, amount int64) *request) func(send func(*request) *request, id string, amount int64) []*request {
		return func(send func(*request) *request, id string, amount int64) []*request {
			return []*request{send(of(id, amount))}
		}
	}
	hold := func(id string, amount int64) *request { return holdOf(id, amount, 3600) }
	// held is a hold of which a part is committed, or that is released.
	held := func(send func(*request) *request, id string, amount int64) []*request {
		first := send(hold(id, amount))
		if first.status >= 300 {
			return []*request{first}
		}
		if amount > 1 {
			return []*request{first, send(commitOf(id, amount-1))}
		}
		return []*request{first, send(aboutUnits(http.MethodDelete, "/reservations/"+id, 0, nil))}
	}
	for _, point := range []string{"small: before COMMIT", "small: after COMMIT", "limits: before the answer"} {
		all = append(all,
			stampede{name: "consume", point: point, pass: 1, send: one(consumeOf)},
			stampede{name: "hold", point: point, pass: 1, send: one(hold)},
			stampede{name: "hold, then commit or release", point: point, pass: 2, send: held, frees: true},
			stampede{name: "enforced usage", point: strings.Replace(point, "limits:", "ingest:", 1), pass: 1, send: one(ingestOf)})
	}
	return append(all, stampede{name: "consume", point: "small: after COMMIT", pass: 1, whole: true, send: one(consumeOf)})
}

// P7: 200 clients want the last 50 units of a HARD limit at once, and one of two instances is killed before COMMIT, after it,
// or before an answer. Each client sends its request again until it is answered. The limit is granted exactly, no request is
// refused that fits, and each repeated request gets its first answer.
func TestP7_StampedesWhileAnInstanceIsKilled(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // a killed member of a Kafka group keeps its partitions for ten seconds
	whole, api := w.killable(""), w.killable("api")
	limitUnits(w, whole)
	rng := rand.New(rand.NewPCG(w.seed, 7))
	all := stampedes()
	if testing.Short() { // one of consumptions before COMMIT, one of enforced usage after it
		all = []stampede{all[0], all[7]}
	}
	for _, s := range all {
		if s.whole {
			s.run(w, rng, whole, api)
		} else {
			s.run(w, rng, api, whole)
		}
	}
	w.prove(false)
}

func (s stampede) run(w *deployment, rng *rand.Rand, dies, other *instance) {
	w.t.Helper()
	x := limitedTenant(w, dies, other)
	x.request(w, consumeOf("before", unitLimit-lastUnits), other)
	if s.whole {
		w.drain() // otherwise the verdict on the first amount may pass the kill point
	}
	sent := make([][]*request, stampedeClients)
	most := s.watch(w, other, x, func() {
		dies.killAt(s.point, s.pass, func() {
			var all sync.WaitGroup
			for c := range sent {
				to, amount := []*instance{dies, other}, 1+rng.Int64N(3)
				if c < lateClients {
					slices.Reverse(to)
					amount = 1 + rng.Int64N(lateAmount)
				}
				all.Go(func() {
					send := func(r *request) *request { return x.request(w, r, to...) }
					sent[c] = s.send(send, fmt.Sprint("client-", c), amount)
				})
			}
			all.Wait()
		})
	})
	if most > unitLimit || most == 0 {
		w.t.Errorf("%s: the account had %d units at most, of %d", s.name, most, unitLimit)
	}
	list := slices.Concat(sent...)
	s.checkGrants(w, other, x, list)
	s.repeat(w, x, list, dies, other)
}

// watch reads an account again and again while do runs, and returns the most that was used and held.
func (s stampede) watch(w *deployment, at *instance, x *tenant, do func()) (most int64) {
	ctx, stop := context.WithCancel(w.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			a, err := accountOf(ctx, w, at, x)
			if most = max(most, a.Used+a.Held); err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	do()
	stop()
	watching.Wait()
	return most
}

func accountOf(ctx context.Context, w *deployment, at *instance, x *tenant) (a struct{ Used, Held int64 }, err error) {
	var page struct{ Data []struct{ Used, Held int64 } }
	if err = w.get(ctx, w.operator, at, "/api/v1/quota/accounts?feature=units&tenantId="+x.id, &page); err == nil && len(page.Data) == 1 {
		a = page.Data[0]
	}
	return a, err
}

// checkGrants checks that the limit was granted exactly, and that refused requests did not fit when they were decided.
func (s stampede) checkGrants(w *deployment, at *instance, x *tenant, list []*request) {
	w.t.Helper()
	last, err := accountOf(w.t.Context(), w, at, x)
	rest := unitLimit - last.Used - last.Held
	if err != nil || !s.frees && rest != 0 || s.frees && last.Held != 0 {
		w.t.Errorf("%s: at the end %d remain, %d are held: %v", s.name, rest, last.Held, err)
	}
	granted, lost := int64(0), 0
	for _, r := range list {
		o := r.outcome(w.t)
		if lost += r.lost; r.granted(w.t) {
			granted += r.amount
			continue
		}
		if r.status == http.StatusAccepted { // a verdict names no account
			o.Limit, o.Used, o.Held, o.Remaining = unitLimit, last.Used, last.Held, rest
		}
		if o.Limit != unitLimit || o.Remaining != o.Limit-o.Used-o.Held || o.Remaining >= r.amount || rest >= r.amount && o.Held == 0 {
			w.t.Errorf("%s of %d was refused though %d remain: %s", r.path, r.amount, rest, r.answer)
		}
	}
	if !s.frees && granted != lastUnits || lost == 0 {
		w.t.Errorf("%s, killed %s: %d units were granted, want %d; %d requests were under way at the death", s.name, s.point, granted,
			lastUnits, lost)
	}
}

// repeat sends requests again to both instances, and checks that each gets its first answer. Refused ones are left out if
// they may fit by now.
func (s stampede) repeat(w *deployment, x *tenant, list []*request, to ...*instance) {
	w.t.Helper()
	var all sync.WaitGroup
	for n, r := range list {
		granted := r.granted(w.t)
		if !granted && s.frees {
			continue
		}
		all.Go(func() {
			again := x.request(w, &request{method: r.method, path: r.path, body: r.body}, to[n%2])
			if granted != again.granted(w.t) || granted && !sameAnswer(w.t, r, again) {
				w.t.Errorf("%s %s: %d %s, again: %d %s", r.method, r.path, r.status, r.answer, again.status, again.answer)
			}
		})
	}
	all.Wait()
}

// P7: the clock of the deciding instance ends a reservation. One instance is a minute ahead, another a minute behind. A reservation
// makes room when the clock of the instance that decides has passed its end, and ends by itself when that of an instance with
// the role commands has: once, and not before.
func TestP7_ReservationsExpireByTheClockOfTheDecidingInstance(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	right := w.serve("api,relay,validator,aggregator,deadletter,projector")
	limitUnits(w, right)
	ahead, behind := serveWithClock(w, "api", time.Minute), serveWithClock(w, "api", -time.Minute)
	x := limitedTenant(w, right, ahead, behind)
	want := func(status int, r *request, at *instance) outcome {
		t.Helper()
		if x.request(w, r, at); r.status != status {
			t.Errorf("%s %s: %d, want %d: %s", r.method, r.path, r.status, status, r.answer)
		}
		return r.outcome(t)
	}
	// By the clock that is ahead the time is over at once.
	want(http.StatusCreated, holdOf("all", unitLimit, 110), behind)
	want(http.StatusConflict, consumeOf("refused", 1), behind)
	want(http.StatusOK, consumeOf("granted", 1), ahead)
	if o := want(http.StatusConflict, commitOf("all", 1), behind); o.State != "EXPIRED" {
		t.Errorf("a commit after the end: %+v", o)
	}
	for _, by := range []*instance{behind, ahead} {
		by.kill()
		by.env = append(by.env, "METERPLEX_ROLES=api,commands")
		by.start()
	}
	// Both look for due reservations. Each ends once, by the clock that is ahead: it passes the end of those of the other one, too.
	const each = 10
	for n := range each {
		want(http.StatusCreated, holdOf(fmt.Sprint("ahead-", n), 1, 1), ahead)
		want(http.StatusCreated, holdOf(fmt.Sprint("behind-", n), 1, 121), behind)
	}
	const expired = `FROM event_log_rows l WHERE subject = 63`
	within(t, "the reservations end", func(context.Context) (bool, string) {
		ended := w.count(`SELECT count(*) ` + expired)
		return ended >= 2*each+1, fmt.Sprint(ended)
	})
	if n := w.count(`SELECT count(*) ` + expired + ` AND occurred_at < (l.payload ->> 'expiresAt')::timestamptz`); n != 0 {
		t.Errorf("%d reservations ended before their time", n)
	}
	if n := w.count(`SELECT count(*) ` + expired); n != 2*each+1 {
		t.Errorf("%d reservations expired, want %d", n, 2*each+1)
	}
	w.drain()
	w.prove(false)
}
