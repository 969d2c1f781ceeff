package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// event is a usage event as a producer sends it, again and again.
type event struct {
	EventID   string    `json:"eventId"`
	Feature   string    `json:"feature"`
	Amount    int64     `json:"amount"`
	Timestamp time.Time `json:"timestamp"`
}

// verdict is an event's answer.
type verdict struct {
	Index    int
	EventID  string
	Status   string
	Code     string
	Position string
}

// fate is what became of one payload of an id.
type fate struct {
	event
	accepted, duplicates, conflicts, rejected int
	doubt                                     int // times sent without an answer since the last one
	open                                      int // times sent without an answer, ever
	position                                  string
}

// acked says whether the service ever promised that this payload counts.
func (f *fate) acked() bool { return f.accepted+f.duplicates > 0 }

// ledger is a tenant's client's own account of every id ever sent.
type ledger struct {
	mu    sync.Mutex
	fates map[string][]*fate // by id; one for each payload
	kept  int                // promised payloads
	told  map[string]total   // what the promised payloads add up to, by feature
	tried map[string]total   // what all payloads add up to
	last  int64              // the greatest position that was told
	at    string             // the same, as it was told
	said  map[string]int     // verdicts, by status
}

func newLedger() *ledger {
	return &ledger{fates: map[string][]*fate{}, told: map[string]total{}, tried: map[string]total{}, said: map[string]int{}}
}

func (l *ledger) of(e event) *fate {
	for _, f := range l.fates[e.EventID] {
		if f.Amount == e.Amount && f.Feature == e.Feature && f.Timestamp.Equal(e.Timestamp) {
			return f
		}
	}
	f := &fate{event: e}
	l.fates[e.EventID] = append(l.fates[e.EventID], f)
	l.tried[e.Feature] = l.tried[e.Feature].plus(e.Amount)
	return f
}

// sending notes what leaves: until there is an answer it may be there or not.
func (l *ledger) sending(batch []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range batch {
		f := l.of(e)
		f.doubt, f.open = f.doubt+1, f.open+1
	}
}

// answered notes the verdicts, which settle what was in doubt. It is an error
// when the answer is not one for each event, in order.
func (l *ledger) answered(batch []event, verdicts []verdict) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(verdicts) != len(batch) {
		return fmt.Errorf("%d verdicts for %d events", len(verdicts), len(batch))
	}
	for n, v := range verdicts {
		if v.Index != n || v.EventID != batch[n].EventID {
			return fmt.Errorf("verdict %d is of %q, index %d; the event is %q", n, v.EventID, v.Index, batch[n].EventID)
		}
		f := l.of(batch[n])
		promised := f.acked()
		if err := f.take(v); err != nil {
			return err
		}
		l.said[v.Status]++
		if !promised && f.acked() {
			l.kept++
			l.told[f.Feature] = l.told[f.Feature].plus(f.Amount)
			if n := numberOf(f.position); n > l.last {
				l.last, l.at = n, f.position
			}
		}
	}
	return nil
}

func (f *fate) take(v verdict) error {
	f.doubt, f.open = 0, f.open-1
	switch v.Status {
	case "accepted":
		f.accepted++
	case "duplicate":
		f.duplicates++
	case "conflict":
		f.conflicts++
	case "rejected":
		f.rejected++
		return nil
	default:
		return fmt.Errorf("%s: status %q", f.EventID, v.Status)
	}
	if v.Status == "conflict" {
		return nil
	}
	if f.position != "" && f.position != v.Position {
		return fmt.Errorf("%s: position %s, and before %s", f.EventID, v.Position, f.position)
	}
	f.position = v.Position
	return nil
}

// unknown are the payloads whose last word is no answer.
func (l *ledger) unknown() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []event
	for _, id := range slices.Sorted(maps.Keys(l.fates)) {
		for _, f := range l.fates[id] {
			if f.doubt > 0 {
				open = append(open, f.event)
			}
		}
	}
	return open
}

// shaky are payloads that were refused, and of which a request had no answer: an
// instance that slept may have had it, and another's refusal is not its last word.
func (l *ledger) shaky() (all []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fates := range l.fates {
		for _, f := range fates {
			if f.doubt == 0 && f.open > 0 && f.rejected > 0 && !f.acked() {
				f.open = 0
				all = append(all, f.event)
			}
		}
	}
	return all
}

// acked is how many payloads were promised to count.
func (l *ledger) acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// lose forgets an id: its producer knows that the event is lost, or never heard of it.
func (l *ledger) lose(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.fates[id] {
		if f.acked() {
			t := l.told[f.Feature]
			l.kept, l.told[f.Feature] = l.kept-1, total{t.amount - f.Amount, t.events - 1}
		}
	}
	delete(l.fates, id)
}

// sums are what the promised events add up to, by feature.
func (l *ledger) sums() map[string]total {
	l.mu.Lock()
	defer l.mu.Unlock()
	sums := map[string]total{}
	for _, fates := range l.fates {
		for _, f := range fates {
			if f.acked() {
				s := sums[f.Feature]
				sums[f.Feature] = total{s.amount + f.Amount, s.events + 1}
			}
		}
	}
	return sums
}

// total is a sum of amounts with the number of events.
type total struct{ amount, events int64 }

func (t total) plus(amount int64) total { return total{t.amount + amount, t.events + 1} }

// numberOf is a position within its partition.
func numberOf(position string) int64 {
	_, text, _ := strings.Cut(position, "-")
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
