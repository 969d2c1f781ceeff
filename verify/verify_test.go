package verify

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// newTestPass is a pass over rows of the test's own.
func newTestPass(s state) *pass { return newPass(&s, 0, time.Now()) }

// stateAt is a state in which the consumers have the same position.
func stateAt(head int64, consumers ...string) state {
	s := state{head: head, withheld: map[int64]bool{}, standIns: map[int64]bool{}, services: map[int32]string{1: validator},
		epochs: []epochSpan{{1, 1}}}
	for _, c := range consumers {
		s.checkpoints = append(s.checkpoints, checkpoint{consumer: c, position: head, epoch: 1, joined: true})
	}
	return s
}

// event is a row of the log.
func event(position int64, subject, topic int16, key, body string) *row {
	return &row{position: position, subject: subject, topic: topic, epoch: 1, origin: 1, key: []byte(key), body: []byte(body),
		id: idOf(position)}
}

func idOf(position int64) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], uint64(position))
	return id
}

const far = 9_000_000_000_000_000_000

// requireFault fails the test unless the check is false and its figures contain a text.
func requireFault(t *testing.T, what string, tally *tally, text string) {
	t.Helper()
	c := tally.result()
	if c.Holds == nil || *c.Holds || !strings.Contains(c.Figures, text) {
		t.Errorf("%s: %s: holds %v: %s", what, c.Name, c.Holds, c.Figures)
	}
}

// An impossible position in a row is reported, and costs neither memory nor time.
func TestImpossiblePositionsAreReported(t *testing.T) {
	for _, n := range []int64{far, -far, -1, 4} {
		x := newTestPass(stateAt(3, validator))
		x.add(event(1, recorded, topicRaw, "e/a", `[1,"f"]`))
		x.add(event(2, validated, topicValidated, fmt.Sprintf("v/%d", n), fmt.Sprintf(`{"rawPosition":%d,"amount":1,"count":1}`, n)))
		x.add(event(3, rejected, topicLetters, fmt.Sprintf("x/%d/0", n), fmt.Sprintf(`{"rawPosition":%d}`, n)))
		x.add(event(4, aggregationFailed, topicLetters, "f/1", fmt.Sprintf(`{"sourcePosition":%d}`, n)))
		x.ends()
		requireFault(t, fmt.Sprint("a verdict on ", n), x.verdicts,
			fmt.Sprintf("the result at 0-2 is on %d, which is no earlier recorded event", n))
	}
	x := newTestPass(stateAt(3))
	x.checkpoints = append(x.checkpoints, checkpoint{consumer: validator, position: far, epoch: 1, joined: true})
	x.begin()
	x.add(event(1, recorded, topicRaw, "e/a", `[1,"f"]`))
	x.ends()
	requireFault(t, "a checkpoint far above the head", x.checkpointBounds, "the head at 3")
	x = newTestPass(stateAt(1))
	x.add(event(1, validated, topicValidated, "v/1", `{"rawPosition":1,"amount":1`+strings.Repeat("0", 10_000_000)+`,"count":1}`))
	requireFault(t, "an amount of ten million digits", x.usageAggregates, `0-1 has the amount "1000`)
	x = newTestPass(stateAt(3))
	x.add(event(far, recorded, topicRaw, "e/a", `[1,"f"]`))
	x.ends()
	requireFault(t, "an event far above the head", x.positions, "follows 0")
}

// Dead letters that are not compared are not proved: those of a partition in which their
// handler could not fold an event.
func TestUncomparedDeadLettersAreUndetermined(t *testing.T) {
	s := stateAt(2, letterReader)
	s.services[2] = letterReader
	x := newTestPass(s)
	r := event(1, aggregationFailed, topicLetters, "f/1", `{"sourcePosition":1}`)
	r.origin = 2
	x.add(r)
	if err := x.compareLetters(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if c := x.deadLetters.result(); c.Holds != nil || !strings.Contains(c.Figures, "undetermined: partition 0 is not compared") {
		t.Errorf("holds %v: %s", c.Holds, c.Figures)
	}
}

// Memory is bounded, and events left out for that are counted.
func TestUncomparedEventsAreCounted(t *testing.T) {
	x := newTestPass(stateAt(5, validator))
	x.verdict.bound = 2
	for n := range int64(4) {
		x.add(event(n+1, recorded, topicRaw, fmt.Sprint("e/", n+1), `[1,"f"]`))
	}
	if c := x.verdictContents.result(); !strings.Contains(c.Figures, "2 recorded events not compared") {
		t.Error(c.Figures)
	}
}
