package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
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
	for _, by := range []*instance{d.behind, d.ahead} {
		by.kill()
		by.env = append(by.env, "METERPLEX_ROLES=api,commands")
		by.start()
	}
	d.heldByBoth()
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
	must.OK(d.t, err)
	var e expiry
	if _, err := pgx.ForEachRow(rows, []any{&e.id, &e.expiresAt, &e.endedAt}, func() error {
		all = append(all, e)
		return nil
	}); err != nil {
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

// heldByBoth holds amounts at both instances, which both look for due reservations. Each ends once, by the clock that is ahead: it
// passes the end of those held by the other one within a second, too.
func (d *clockTest) heldByBoth() {
	d.t.Helper()
	x, began := d.limitedTenant(d.right, d.ahead, d.behind), time.Now()
	const each = 10
	for n := range each {
		d.mustSend(x, holdOf(fmt.Sprint("ahead-", n), 1, 1), http.StatusCreated, d.ahead)
		d.mustSend(x, holdOf(fmt.Sprint("behind-", n), 1, 121), http.StatusCreated, d.behind)
	}
	within(d.t, "the reservations end", func(context.Context) (bool, string) {
		ended := d.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 63`, x.id)
		return ended >= 2*each, fmt.Sprint(ended)
	})
	d.checkExpiries(d.expiries(x), 2*each, began.Add(time.Minute), time.Now().Add(time.Minute))
	d.checkAccount(d.behind, x, d.fold(x)) // each ended once
}
