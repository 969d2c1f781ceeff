package http_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/meterplex/meterplex/events"
)

// asked is a request against a limit. Of expire, no client sends it: the event that a reservation's time is over.
type asked struct {
	account, kind string
	id            string // of the reservation; "" for consume
	event         string // of consume and commit
	amount        int64
	overage       bool
	called        int64 // microseconds, by the clock of expiries
}

// told is an answer. If the answer was lost, it is read from the event.
type told struct {
	code       string // of a refusal
	state      string
	used, held int64
	until      int64 // microseconds
	position   int64
	made       bool // the request made the event at the position; otherwise it changed no state
}

// key names the event of a request, "" for those that have no key.
func (in *asked) key() string {
	switch in.kind {
	case "consume", "commit":
		return events.KeyUsage(in.event)
	case "hold":
		return events.KeyHold(in.id)
	case "release", "expire":
		return events.KeyReservationEnd(in.id)
	}
	return ""
}

// quotaState is an account with its reservations. States are never changed: a grant makes another one.
type quotaState struct {
	used, held int64
	holds      map[string]heldAmount
	known      map[string]int64 // positions by key
}

type heldAmount struct {
	amount, until int64
	state         string
}

// answers reports whether the state gives an answer that changes no state: a refusal, a repetition, or a read.
func (s *quotaState) answers(in *asked, out *told, limit int64) bool {
	at, known := s.known[in.key()]
	if out.code != "" || in.kind == "read" {
		return s.refuses(in, out, limit)
	}
	h := s.holds[in.id] // a repeated hold has the present state
	return known && at == out.position && (in.kind != "hold" || h.state == out.state && h.until == out.until)
}

// slack is how far the clocks of expiries and of calls may differ, in microseconds: both are those of one machine.
const slack = 100_000

// refuses reports whether a refusal or a read fits the state.
func (s *quotaState) refuses(in *asked, out *told, limit int64) bool {
	h, exists := s.holds[in.id]
	_, known := s.known[in.key()]
	sums := out.used == s.used && out.held == s.held
	switch out.code {
	case "": // a read of the account
		return sums
	case "quota_exceeded":
		for _, h := range s.holds {
			if h.state == events.StateHeld && h.until+slack < in.called {
				return false // it ends before a request is refused because of it
			}
		}
		return !known && sums && s.used+s.held+in.amount > limit
	case "reservation_not_found":
		return !exists
	case "reservation_ended":
		return exists && h.state == out.state && h.state != events.StateHeld && (!known || h.state == events.StateExpired)
	case "amount_exceeds_hold":
		return h.state == events.StateHeld && in.amount > h.amount && !in.overage
	}
	return false
}

// grant returns the state after a request that is granted for the first time, nil if the answer does not fit.
func (s *quotaState) grant(in *asked, out *told, limit int64) *quotaState {
	h, exists := s.holds[in.id]
	used, held, fits := s.used, s.held, h.state == events.StateHeld
	switch in.kind {
	case "consume":
		used, fits = used+in.amount, s.used+s.held+in.amount <= limit
	case "hold":
		held, fits = held+in.amount, !exists && s.used+s.held+in.amount <= limit
		h = heldAmount{in.amount, out.until, events.StateHeld}
	case "extend":
		fits = fits && out.until >= h.until
		h.until = out.until
	case "commit":
		fits = fits && (in.overage || in.amount <= h.amount)
		used, held, h.state = used+in.amount, held-h.amount, events.StateCommitted
	case "release":
		held, h.state = held-h.amount, events.StateReleased
	case "expire":
		fits = fits && out.until == h.until
		held, h.state = held-h.amount, events.StateExpired
	}
	if !fits || used != out.used || held != out.held {
		return nil
	}
	next := &quotaState{used, held, s.holds, maps.Clone(s.known)}
	if in.kind != "consume" {
		next.holds = maps.Clone(s.holds)
		next.holds[in.id] = h
	}
	if key := in.key(); key != "" {
		next.known[key] = out.position
	}
	return next
}

// misfit looks for the order of one ledger in the requests of an account: grants in the order of the log, each other request behind the
// earliest grant at which its answer fits, and no request before one that had ended when it began. It describes the first one that fits
// nowhere.
func misfit(all []*attempt, limit int64) string {
	var grants, others []*attempt
	for _, a := range all {
		if a.out.made {
			grants = append(grants, a)
		} else {
			others = append(others, a)
		}
	}
	slices.SortFunc(grants, func(a, b *attempt) int { return cmp.Compare(a.out.position, b.out.position) })
	slices.SortFunc(others, func(a, b *attempt) int { return cmp.Compare(a.call, b.call) })
	states, began := []*quotaState{{holds: map[string]heldAmount{}, known: map[string]int64{}}}, int64(0)
	for _, a := range grants {
		s := states[len(states)-1]
		next := s.grant(a.in, a.out, limit)
		if next == nil {
			return fmt.Sprintf("%+v: %+v after used %d, held %d, %+v", *a.in, *a.out, s.used, s.held, s.holds[a.in.id])
		}
		if a.done < began {
			return fmt.Sprintf("%+v: %+v is behind a request that began after its answer", *a.in, *a.out)
		}
		began = max(began, a.call)
		states = append(states, next)
	}
	places := make([]int, len(others))
	for n, a := range others {
		low, high := 0, len(grants)
		for i, g := range grants {
			if g.done < a.call {
				low = i + 1
			} else if g.call > a.done {
				high = min(high, i)
			}
		}
		for before := range n {
			if others[before].done < a.call {
				low = max(low, places[before])
			}
		}
		for low <= high && !states[low].answers(a.in, a.out, limit) {
			low++
		}
		if low > high {
			return fmt.Sprintf("%+v: %+v fits no state", *a.in, *a.out)
		}
		places[n] = low
	}
	return ""
}
