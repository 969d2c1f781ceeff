package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// firstAnswers are requests of every kind against a limit, in an order in which each is granted.
func firstAnswers(name string) []*request {
	id := func(what string) string { return name + "-" + what }
	return []*request{
		consumeOf(id("consumed"), 7),
		holdOf(id("stays"), 5, 3600),
		holdOf(id("part"), 9, 3600),
		commitOf(id("part"), 4),
		holdOf(id("given"), 3, 3600),
		releaseOf(id("given")),
		holdOf(id("more"), 2, 3600),
		{method: http.MethodPost, path: unitsPath + "/reservations/" + id("more") + "/commit", body: object{"eventId": id("more-usage"), "amount": 11, "overage": "record"}, amount: 11},
	}
}

// answersAgain sends granted requests again, and checks that each gets its first answer.
func (w *deployment) answersAgain(when string, x *tenant, list []*request, to *instance) {
	w.t.Helper()
	for _, r := range list {
		again := r.fresh()
		if w.send(x, again, to) && !sameAnswer(w.t, r, again) {
			w.t.Errorf("%s: %s %s %v\nfirst: %d %s\nagain: %d %s", when, r.method, r.path, r.body, r.status, r.answer, again.status, again.answer)
		}
	}
}

// P7: a consume, a hold, a commit and a release are sent, and the instance dies after COMMIT or before the answer. The request is
// sent again, to the same instance or to another one, and gets an answer. Each instance gives the same answer to it
// afterwards, byte for byte, also after another kill.
func TestP7_RepeatsAfterKillsGetTheFirstAnswer(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newLimitsTest(t)
	x := d.limitedTenant(d.whole.instance, d.api.instance)
	all := firstAnswers("kept")
	for _, r := range all {
		d.mustSend(x, r, r.granting(), d.api.instance)
	}
	for n, place := range []string{"small: after COMMIT", "limits: before the answer"} {
		for m, r := range firstAnswers(fmt.Sprint("killed-", n)) {
			if m == 1 || m == 4 || m > 5 { // the kinds that were killed before
				d.mustSend(x, r, r.granting(), d.api.instance)
				all = append(all, r)
				continue
			}
			all = append(all, r)
			d.repeatKilled(x, r, place, (n+m)%2 == 0)
		}
	}
	var both sync.WaitGroup
	d.api.kill()
	d.whole.kill()
	for _, m := range []*killableInstance{d.api, d.whole} {
		m.start()
		both.Go(func() { d.answersAgain("after the last kill", x, all, m.instance) })
	}
	both.Wait()
	states := d.fold(x)
	d.checkAccount(d.whole.instance, x, states)
	// Each granted request is one event.
	if grants := len(states) - 1; grants != len(all) {
		t.Errorf("%d requests were granted by %d events", len(all), grants)
	}
}

// granting is the status of the first answer to a granted request.
func (r *request) granting() int {
	if _, hold := r.body["reservationId"]; hold {
		return http.StatusCreated
	}
	return http.StatusOK
}

// repeatKilled sends a request to an instance that dies of it, and again to another instance or to the same one.
func (d *limitsTest) repeatKilled(x *tenant, r *request, place string, same bool) {
	d.t.Helper()
	to := []*instance{d.api.instance}
	if !same {
		to = append(to, d.whole.instance)
	}
	d.api.killAt(place, 1, func() { d.send(x, r, to...) })
	if r.lost == 0 || r.status != http.StatusOK { // also for a hold, which was recorded before
		d.t.Errorf("killed %s: %s %s was sent %d times, and answered %d: %s", place, r.method, r.path, r.lost+1, r.status, r.answer)
	}
}
