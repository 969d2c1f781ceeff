package conformance

import "strings"

func containsAny(text string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

func reservationCases() []Case {
	with := func(id string, more object) object {
		more["feature"], more["reservationId"] = "sdk_tokens", id
		return more
	}
	return []Case{
		{Name: "reserve", Promise: "reserve, extend and commit hold an amount and use a part of it, each once although each answer is lost",
			run: func(x *trial) {
				c := x.open()
				for _, step := range []struct {
					do   string
					in   object
					sums string
				}{
					{"reserve", object{"amount": "500", "ttlSeconds": 600}, "0 500 500"},
					{"extend", object{"ttlSeconds": 1200}, "0 500 500"},
					{"commit", object{"amount": "412"}, "412 0 588"},
				} {
					var got account
					x.proxy.fails(losesAnswer, cutsBehind, cutsAnswer)
					c.must(step.do, with("job", step.in), &got)
					if got.sums() != step.sums || x.proxy.faultsLeft() > 0 {
						x.Errorf("%s: %+v, want used, held and remaining %s; %d faults left", step.do, got, step.sums, x.proxy.faultsLeft())
					}
				}
				if list := x.log(); len(list) != 1 || list[0].Amount != 412 {
					x.Errorf("%+v", list)
				}
			}},
		{Name: "usage-ids", Promise: "the usage of a reservation has the same id in each language, also for a long reservationId",
			run: func(x *trial) {
				c := x.open()
				for _, v := range x.vectors().UsageIDs {
					var got account
					c.must("reserve", with(v.ReservationID, object{"amount": "1"}), nil)
					if c.must("commit", with(v.ReservationID, object{"amount": "1"}), &got); got.EventID != v.EventID {
						x.Errorf("%s: %s, want %s", v.ReservationID, got.EventID, v.EventID)
					}
				}
			}},
		{Name: "release", Promise: "release ends a hold without usage, once although its answer is lost", run: func(x *trial) {
			c := x.open()
			var got account
			c.must("reserve", with("job", object{"amount": "400"}), &got)
			x.proxy.fails(losesAnswer, cutsAnswer)
			if c.must("release", with("job", object{}), &got); got.sums() != "0 0 1000" || got.State != "RELEASED" {
				x.Errorf("%+v", got)
			}
			x.counts()
		}},
		{Name: "made-ids", Promise: "reserve makes an id, which is kept over retries and returned", run: func(x *trial) {
			c := x.open()
			var got account
			x.proxy.fails(losesAnswer, losesAnswer)
			c.must("reserve", object{"feature": "sdk_tokens", "amount": "100"}, &got)
			if got.ReservationID == "" || got.sums() != "0 100 900" {
				x.Fatalf("%+v", got)
			}
			if c.must("commit", object{"feature": "sdk_tokens", "reservationId": got.ReservationID, "amount": "100"},
				&got); got.sums() != "100 0 900" {
				x.Errorf("%+v", got)
			}
		}},
		{Name: "reserve-refused", Promise: "reserve of more than the rest is refused, commit of an ended hold, too", run: func(x *trial) {
			c := x.open()
			c.refused("quota_exceeded", "reserve", with("big", object{"amount": "1001"}))
			c.refused("reservation_not_found", "commit", with("none", object{"amount": "1"}))
			c.must("reserve", with("job", object{"amount": "5"}), nil)
			c.must("release", with("job", object{}), nil)
			c.refused("reservation_ended", "commit", with("job", object{"amount": "5"}))
			x.counts()
		}},
		{Name: "with-reservation", Promise: "withReservation commits the actual amount, although answers are lost", run: func(x *trial) {
			c := x.open()
			var got account
			x.proxy.fails(losesAnswer, passes, losesAnswer)
			if c.must("withReservation", object{"feature": "sdk_tokens", "amount": "500", "actual": "412"},
				&got); got.sums() != "412 0 588" {
				x.Errorf("%+v", got)
			}
			if list := x.log(); len(list) != 1 || list[0].Amount != 412 {
				x.Errorf("%+v", list)
			}
		}},
		{Name: "with-reservation-overage", Promise: "withReservation records more than it held if more was used", run: func(x *trial) {
			c := x.open()
			var got account
			if c.must("withReservation", object{"feature": "sdk_tokens", "amount": "10", "actual": "12"}, &got); got.sums() != "12 0 988" {
				x.Errorf("%+v", got)
			}
		}},
		{Name: "with-reservation-fails", Promise: "withReservation releases the hold if the callback fails", run: func(x *trial) {
			c := x.open()
			x.proxy.fails(passes, losesAnswer)
			c.refused("callback_failed", "withReservation", object{"feature": "sdk_tokens", "amount": "1000", "fail": true})
			if got := c.check("sdk_tokens", 1000); !got.Allowed {
				var page struct{ Rows []object }
				c.must("reservations", object{"query": object{"feature": "sdk_tokens"}}, &page)
				x.Errorf("%+v; %v", got, page.Rows)
			}
			x.counts()
		}},
		{Name: "with-reservation-refused", Promise: "withReservation does not run the callback if the hold is refused",
			run: func(x *trial) {
				x.open().refused("quota_exceeded", "withReservation", object{"feature": "sdk_tokens", "amount": "1001", "fail": true})
			}},
	}
}
