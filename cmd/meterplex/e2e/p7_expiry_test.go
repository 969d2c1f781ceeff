package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// clockTest is a deployment with an instance a minute ahead and one a minute behind. Only they decide requests, and end
// reservations: the one with the right clock has the other roles.
type clockTest struct {
	*deployment
	right, ahead, behind *instance
}

// expiry is the end of a reservation whose time was over.
type expiry struct {
	id        string
	expiresAt time.Time // by the clock that held it
	endedAt   time.Time // by the clock that ended it
}

// P7: the clock of the deciding instance ends a reservation. One instance is a minute ahead, another a minute behind. A reservation
// makes room when the clock of the instance that decides has passed its end, and ends by itself when that of an instance with
// the role commands has: once, not before, and soon after.
func TestP7_ReservationsExpireByTheClockOfTheDecidingInstance(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	d := &clockTest{deployment: w, right: w.serve("api,relay,validator,aggregator,deadletter,projector")}
	d.limitedPlans(d.right)
	d.ahead, d.behind = w.wrongClockInstance("api", time.Minute), w.wrongClockInstance("api", -time.Minute)
	d.roomIsMade()
	x := d.expiredBy(d.behind, -time.Minute)
	d.expiredBy(d.ahead, time.Minute)
	d.heldByBoth(x)
}

// roomIsMade holds the whole limit for 110 s by the clock that is behind. By the clock that is ahead the time is over at once.
func (d *clockTest) roomIsMade() {
	d.t.Helper()
	x := d.limitedTenant(d.right, d.ahead, d.behind)
	d.mustSend(x, holdOf("all", unitLimit, 110), http.StatusCreated, d.behind)
	refused := consumeOf("refused", 1)
	if d.mustSend(x, refused, http.StatusConflict, d.behind); refused.outcome(d.t).Code != "quota_exceeded" {
		d.t.Errorf("with the limit held: %s", refused.answer)
	}
	began := time.Now()
	d.mustSend(x, consumeOf("granted", 1), http.StatusOK, d.ahead)
	d.checkExpiries(d.expiries(x), 1, began.Add(time.Minute), time.Now().Add(time.Minute))
	late := commitOf("all", 1)
	if d.mustSend(x, late, http.StatusConflict, d.behind); late.outcome(d.t).State != "EXPIRED" {
		d.t.Errorf("a commit after the end: %s", late.answer)
	}
	d.checkAccount(d.behind, x, d.fold(x))
}

// expiries reads how a tenant's reservations expired, in the order of the log.
func (d *clockTest) expiries(x *tenant) (all []expiry) {
	d.t.Helper()
	rows, err := d.sql.Query(d.t.Context(), `SELECT l.payload ->> 'reservationId', (l.payload ->> 'expiresAt')::timestamptz, occurred_at
FROM event_log_rows l WHERE tenant_id = $1 AND subject = 63 ORDER BY position`, x.id)
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var e expiry
		if err := rows.Scan(&e.id, &e.expiresAt, &e.endedAt); err != nil {
			d.t.Fatal(err)
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return all
}

// checkExpiries checks that so many reservations expired, none before its time, between two times of the clock that ended them.
func (d *clockTest) checkExpiries(all []expiry, want int, from, to time.Time) {
	d.t.Helper()
	for _, e := range all {
		if e.endedAt.Before(e.expiresAt) || e.endedAt.Before(from.Add(-time.Millisecond)) || e.endedAt.After(to) {
			d.t.Errorf("%s was to end at %s, and ended at %s; want a time from %s to %s", e.id, e.expiresAt, e.endedAt, from, to)
		}
	}
	if len(all) != want {
		d.t.Errorf("%d reservations expired, want %d", len(all), want)
	}
}

// shortHolds is how many reservations each measurement of lateness holds.
const shortHolds = 60

// expiredBy gives an instance the role commands, holds amounts for a second or two, and waits until each has ended. It prints how
// late, and returns the tenant.
func (d *clockTest) expiredBy(by *instance, wrong time.Duration) *tenant {
	d.t.Helper()
	by.kill()
	by.env = append(by.env, "METERPLEX_ROLES=api,commands")
	by.start()
	x := d.limitedTenant(d.right, d.ahead, d.behind)
	began := time.Now()
	d.mustSend(x, holdOf("later", 1, 3600), http.StatusCreated, by)
	for n := range shortHolds {
		d.mustSend(x, holdOf(fmt.Sprint("short-", n), 1, 1+n%2), http.StatusCreated, by)
		time.Sleep(10 * time.Millisecond) // so that they end in each part of the interval of the looks for them
	}
	d.awaitExpiries(x, shortHolds)
	all := d.expiries(x)
	d.checkExpiries(all, shortHolds, began.Add(wrong), time.Now().Add(wrong))
	late := make([]time.Duration, len(all))
	for n, e := range all {
		late[n] = e.endedAt.Sub(e.expiresAt).Round(time.Millisecond)
	}
	slices.Sort(late)
	d.t.Logf("with a clock %s off reservations ended %s late, 9 of 10 at most %s, one %s", wrong, late[len(late)/2], late[len(late)*9/10], late[len(late)-1])
	if late[len(late)-1] > patience {
		d.t.Error("a reservation ended too late")
	}
	d.checkAccount(d.right, x, d.fold(x))
	return x
}

// awaitExpiries waits until so many reservations of a tenant have expired.
func (d *clockTest) awaitExpiries(x *tenant, n int) {
	d.t.Helper()
	within(d.t, "the reservations end", func(context.Context) (bool, string) {
		ended := d.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 63`, x.id)
		return ended >= n, fmt.Sprint(ended)
	})
}

// heldByBoth holds amounts at both instances, which both look for due reservations. Each ends once, by the clock that is ahead: it
// passes the end of those held by the other one within a second, too.
func (d *clockTest) heldByBoth(x *tenant) {
	d.t.Helper()
	before, began := len(d.expiries(x)), time.Now()
	const each = 10
	for n := range each {
		d.mustSend(x, holdOf(fmt.Sprint("ahead-", n), 1, 1), http.StatusCreated, d.ahead)
		d.mustSend(x, holdOf(fmt.Sprint("behind-", n), 1, 121), http.StatusCreated, d.behind)
	}
	d.awaitExpiries(x, before+2*each)
	d.checkExpiries(d.expiries(x)[before:], 2*each, began.Add(time.Minute), time.Now().Add(time.Minute))
	d.checkAccount(d.behind, x, d.fold(x)) // each ended once
}
