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

// event is a usage event as a producer sends and resends it.
type event struct {
	EventID   string    `json:"eventId"`
	Feature   string    `json:"feature"`
	Amount    int64     `json:"amount"`
	Timestamp time.Time `json:"timestamp"`
}

// verdict is the answer for one event.
type verdict struct {
	Index    int
	EventID  string
	Status   string
	Code     string
	Position string
}

// payloadRecord counts the answers for one payload of an id.
type payloadRecord struct {
	event
	accepted, duplicates, conflicts, rejected int
	unsettled                                 int // times sent without an answer since the last answer
	unanswered                                int // times sent without an answer in total
	position                                  string
}

// acked reports whether the service ever acknowledged that this payload counts.
func (f *payloadRecord) acked() bool { return f.accepted+f.duplicates > 0 }

// ledger records every id that a tenant's client sent, with the answers.
type ledger struct {
	mu            sync.Mutex
	fates         map[string][]*payloadRecord // by id; one for each payload
	ackedCount    int                         // acknowledged payloads
	ackedSums     map[string]total            // sums of the acknowledged payloads, by feature
	attemptedSums map[string]total            // sums of all payloads, by feature
	lastPosition  int64                       // the greatest position of an answer
	at            string                      // the same as text
}

func newLedger() *ledger {
	return &ledger{fates: map[string][]*payloadRecord{}, ackedSums: map[string]total{}, attemptedSums: map[string]total{}}
}

func (l *ledger) record(e event) *payloadRecord {
	for _, f := range l.fates[e.EventID] {
		if f.Amount == e.Amount && f.Feature == e.Feature && f.Timestamp.Equal(e.Timestamp) {
			return f
		}
	}
	f := &payloadRecord{event: e}
	l.fates[e.EventID] = append(l.fates[e.EventID], f)
	l.attemptedSums[e.Feature] = l.attemptedSums[e.Feature].plus(e.Amount)
	return f
}

// sending records that a batch is sent: without an answer it may be stored or not.
func (l *ledger) sending(batch []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range batch {
		f := l.record(e)
		f.unsettled, f.unanswered = f.unsettled+1, f.unanswered+1
	}
}

// answered records the verdicts, which end the doubt. It returns an error unless there is one
// verdict for each event, in order.
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
		f := l.record(batch[n])
		promised := f.acked()
		if err := f.apply(v); err != nil {
			return err
		}
		if !promised && f.acked() {
			l.ackedCount++
			l.ackedSums[f.Feature] = l.ackedSums[f.Feature].plus(f.Amount)
			if n := numberOf(f.position); n > l.lastPosition {
				l.lastPosition, l.at = n, f.position
			}
		}
	}
	return nil
}

func (f *payloadRecord) apply(v verdict) error {
	f.unsettled, f.unanswered = 0, f.unanswered-1
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
		return fmt.Errorf("%s: position %s, was %s", f.EventID, v.Position, f.position)
	}
	f.position = v.Position
	return nil
}

// unknown returns the payloads whose last request had no answer.
func (l *ledger) unknown() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []event
	for _, id := range slices.Sorted(maps.Keys(l.fates)) {
		for _, f := range l.fates[id] {
			if f.unsettled > 0 {
				open = append(open, f.event)
			}
		}
	}
	return open
}

// uncertain returns the refused payloads of which another request had no answer: a stopped
// instance may hold that request and still store the payload.
func (l *ledger) uncertain() (all []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fates := range l.fates {
		for _, f := range fates {
			if f.unsettled == 0 && f.unanswered > 0 && f.rejected > 0 && !f.acked() {
				f.unanswered = 0
				all = append(all, f.event)
			}
		}
	}
	return all
}

// acked counts the acknowledged payloads.
func (l *ledger) acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ackedCount
}

// drop forgets events that the database lost, or that never had an answer.
func (l *ledger) drop(lost []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range lost {
		for _, f := range l.fates[e.EventID] {
			if f.acked() {
				t := l.ackedSums[f.Feature]
				l.ackedCount, l.ackedSums[f.Feature] = l.ackedCount-1, total{t.amount - f.Amount, t.events - 1}
			}
		}
		delete(l.fates, e.EventID)
	}
}

// total is a sum of amounts with the number of events.
type total struct{ amount, events int64 }

func (t total) plus(amount int64) total { return total{t.amount + amount, t.events + 1} }

// numberOf returns the number of a position within its partition.
func numberOf(position string) int64 {
	_, text, _ := strings.Cut(position, "-")
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// sumsAcknowledged returns the sums of the acknowledged usage and its last position.
func (l *ledger) sumsAcknowledged() (sums map[string]int64, at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return amounts(l.ackedSums), l.at
}

// sumsAttempted returns the sums of all usage ever sent.
func (l *ledger) sumsAttempted() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return amounts(l.attemptedSums)
}

func amounts(totals map[string]total) map[string]int64 {
	sums := map[string]int64{}
	for feature, t := range totals {
		sums[feature] = t.amount
	}
	return sums
}
