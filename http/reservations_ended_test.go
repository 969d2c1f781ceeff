package http_test

import (
	"testing"
)

// A hold is answered with the end of its reservation for ever. How much of it was used is known for 7 days.
func TestARepeatedHoldNamesTheEndOfAReservationThatIsListedNoLonger(t *testing.T) {
	w, c := newClocked(t, "2027-05-10T12:00:00Z")
	a := w.newAccount("A")
	for _, id := range []string{"used", "released", "due"} {
		w.want(201, holding(a.key, id, 10, 1))
	}
	w.want(200, committing(a.key, "used", "use", 4))
	w.want(200, releasing(a.key, "released"))
	c.set("2027-05-10T12:00:02Z")
	w.want(201, holding(a.key, "all", 996, 60)) // there is room for it once "due" has expired
	w.asOwner(`UPDATE reservations SET ended_at = now() - interval '8 days' WHERE state <> 'HELD'`)
	var deleted int
	w.must(w.pool.QueryRow(t.Context(), `SELECT expire_reservations('7 days', 100)`).Scan(&deleted))
	if deleted != 3 {
		t.Fatalf("%d reservations were deleted", deleted)
	}
	for id, want := range map[string]string{"used": "COMMITTED <nil>", "released": "RELEASED 10", "due": "EXPIRED 10",
		"all": "HELD <nil>"} {
		amount, ttl := 10, 1
		if id == "all" {
			amount = 996
		}
		w.same(id, valuesOf(w.want(200, holding(a.key, id, amount, ttl)), "state", "released"), want)
	}
	w.want(200, committing(a.key, "used", "use", 4))
	w.want(200, releasing(a.key, "released"))
	w.refused(w.do(releasing(a.key, "due")), 409, "reservation_ended")
	w.refused(w.do(releasing(a.key, "used")), 404, "reservation_not_found")
	w.refused(w.do(committing(a.key, "released", "other", 1)), 404, "reservation_not_found")
}
