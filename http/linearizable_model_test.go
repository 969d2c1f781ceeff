package http_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"

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
	// The place of a request that changed no state: the position of the grant before it, and its number behind that grant. Set by place.
	after int64
	turn  int
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

// quotaState is an account with its reservations. States are never changed: a step makes another one.
type quotaState struct {
	used, held int64
	last       int64 // the position of the last grant
	others     int   // number of requests since then that changed no state
	holds      map[string]heldAmount
	known      map[string]int64 // positions by key
}

type heldAmount struct {
	amount, until int64
	state         string
}

// quotaOrder is the order in which an account's history is looked for: that of positions, with a place of each other request among them.
// Without it the search takes too long.
type quotaOrder struct {
	next   map[int64]int64 // the position of the next grant
	others map[int64]int   // how many other requests follow a grant
}

// quotaModel is a ledger with a limit: it decides one request after another.
func quotaModel(limit int64, orders map[string]*quotaOrder) porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
			of := map[string][]porcupine.Operation{}
			for _, op := range all {
				account := op.Input.(*asked).account
				of[account] = append(of[account], op)
			}
			for _, part := range of {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return newQuotaState() },
		Step: func(state, input, output any) (bool, any) {
			s, in, out := state.(*quotaState), input.(*asked), output.(*told)
			order := orders[in.account]
			if out.made {
				if s.others != order.others[s.last] || out.position != order.next[s.last] {
					return false, s
				}
				next := s.grant(in, out, limit)
				return next != nil, next
			}
			if out.after != s.last || out.turn != s.others || !s.answers(in, out, limit) {
				return false, s
			}
			next := *s
			next.others++
			return true, &next
		},
		Equal: func(a, b any) bool {
			s, o := a.(*quotaState), b.(*quotaState)
			return s == o || s.used == o.used && s.held == o.held && s.last == o.last && s.others == o.others && maps.Equal(s.holds, o.holds) && maps.Equal(s.known, o.known)
		},
	}
}

func newQuotaState() *quotaState {
	return &quotaState{holds: map[string]heldAmount{}, known: map[string]int64{}}
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
	next := &quotaState{used, held, out.position, 0, s.holds, maps.Clone(s.known)}
	if in.kind != "consume" {
		next.holds = maps.Clone(s.holds)
		next.holds[in.id] = h
	}
	if key := in.key(); key != "" {
		next.known[key] = out.position
	}
	return next
}

// place places the operations of an account: grants in the order of the log, each other one behind the earliest grant at which it
// fits, no earlier than those that had ended when it began. It returns the first operation that fits nowhere.
func (o *quotaOrder) place(ops []porcupine.Operation, limit int64) (misfit string) {
	var grants []porcupine.Operation
	others := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool {
		made := op.Output.(*told).made
		if made {
			grants = append(grants, op)
		}
		return made
	})
	slices.SortFunc(grants, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Output.(*told).position, b.Output.(*told).position)
	})
	slices.SortFunc(others, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	states := []*quotaState{newQuotaState()}
	for _, op := range grants {
		s, in, out := states[len(states)-1], op.Input.(*asked), op.Output.(*told)
		next := s.grant(in, out, limit)
		if next == nil {
			return fmt.Sprintf("%+v: %+v after used %d, held %d, %+v", *in, *out, s.used, s.held, s.holds[in.id])
		}
		o.next[s.last] = next.last
		states = append(states, next)
	}
	places := make([]int, len(others))
	for n, op := range others {
		in, out := op.Input.(*asked), op.Output.(*told)
		low, high := 0, len(grants)
		for i, g := range grants {
			if g.Return < op.Call {
				low = i + 1
			} else if g.Call > op.Return {
				high = min(high, i)
			}
		}
		for before := range n {
			if others[before].Return < op.Call {
				low = max(low, places[before])
			}
		}
		for low <= high && !states[low].answers(in, out, limit) {
			low++
		}
		if low > high {
			return fmt.Sprintf("%+v: %+v fits no state", *in, *out)
		}
		places[n], out.after, out.turn = low, states[low].last, o.others[states[low].last]
		o.others[out.after]++
	}
	return ""
}
