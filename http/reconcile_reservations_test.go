package http_test

import (
	"fmt"
	"testing"
)

// Reservations whose rows differ from the log are listed, and not repaired.
func TestReservationsAreComparedWithTheLog(t *testing.T) {
	w, a := newServiceWithAccount(t)
	for _, id := range []string{"stays", "longer", "ended", "gone", "free"} {
		w.want(201, holding(a.key, id, 10, 600))
	}
	w.want(200, releasing(a.key, "free"))
	for _, sql := range []string{
		`UPDATE reservations SET expires_at = expires_at + interval '1 hour' WHERE reservation_id = 'longer'`,
		`UPDATE reservations SET state = 'EXPIRED', ended_position = 1, ended_at = now() WHERE reservation_id = 'ended'`,
		`UPDATE reservations SET state = 'HELD', ended_position = NULL, ended_at = NULL WHERE reservation_id = 'free'`,
		`UPDATE reservations SET reservation_id = 'other' WHERE reservation_id = 'gone'`,
	} {
		w.exec(sql)
	}
	for _, body := range []string{"", `,"repair":true,"reason":"a test"`} {
		got := w.want(200, call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + a.id + `"` + body + `}`})
		var list []string
		for _, one := range got["reservations"].([]any) {
			of := one.(map[string]any)
			was, _ := of["was"].(map[string]any)
			is, _ := of["is"].(map[string]any)
			list = append(list, fmt.Sprint(of["reservationId"], " ", was["state"], " ", is["state"]))
		}
		w.same("the reservations", list, "[ended EXPIRED HELD free HELD <nil> gone <nil> HELD longer HELD HELD other HELD <nil>]")
		w.same("repaired", got["repaired"], false)
	}
}
