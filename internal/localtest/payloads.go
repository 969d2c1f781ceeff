package localtest

import (
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/jsonschema"
	"github.com/meterplex/meterplex/projections"
)

// fits holds the payloads that are known to be like their schemas, by their hashes: several consumers apply the same event.
var fits = struct {
	sync.Mutex
	known map[fit]struct{}
	seed  maphash.Seed
}{known: map[fit]struct{}{}, seed: maphash.MakeSeed()}

type fit struct {
	subject    events.Subject
	vocabulary *events.Vocabulary
	payload    uint64
}

// maxFits bounds the memory for them.
const maxFits = 1 << 20

// checkOnce checks a payload unless it is known to be like its schema.
func checkOnce(s events.Subject, v *events.Vocabulary, payload []byte) error {
	if v == nil { // as consumers name it
		v = events.CurrentVocabulary()
	}
	f := fit{s, v, maphash.Bytes(fits.seed, payload)}
	fits.Lock()
	_, known := fits.known[f]
	fits.Unlock()
	if known {
		return nil
	}
	if err := jsonschema.Check(s, v, payload); err != nil {
		return err
	}
	fits.Lock()
	defer fits.Unlock()
	if len(fits.known) == maxFits {
		clear(fits.known)
	}
	fits.known[f] = struct{}{}
	return nil
}

// Payloads compares every payload that a log writes and a consumer applies with its schema. A
// payload unlike its schema fails the test.
type Payloads struct {
	testing.TB
	off *atomic.Bool
}

// CheckPayloads returns the checks of a test. A benchmark has no checks: it would measure them.
func CheckPayloads(t testing.TB) Payloads {
	p := Payloads{t, new(atomic.Bool)}
	if _, measured := t.(*testing.B); measured {
		p.off.Store(true)
	}
	return p
}

// Allow ends the checks: the test writes payloads that no release writes.
func (p Payloads) Allow() { p.off.Store(true) }

func (p Payloads) check(s events.Subject, v *events.Vocabulary, payload []byte, from string) {
	p.Helper()
	if p.off.Load() {
		return
	}
	if err := checkOnce(s, v, payload); err != nil && !errors.Is(err, jsonschema.ErrUnknown) {
		info, _ := s.Info()
		p.Errorf("%s: a payload of %s is unlike its schema: %v: %.500s", from, info.Name(), err, payload)
	}
}

// Written checks the events of an append; it is for eventlog.Config.Written.
func (p Payloads) Written(n int, event func(i int) (events.Subject, []byte)) {
	p.Helper()
	for i := 0; i < n && !p.off.Load(); i++ {
		s, payload := event(i)
		p.check(s, nil, payload, "the log")
	}
}

// Observer checks the events that consumers have applied, and reports to next, which may be nil.
func (p Payloads) Observer(next projections.Observer) projections.Observer {
	return observer{p, next}
}

type observer struct {
	Payloads
	next projections.Observer
}

// Observe implements projections.Observer.
func (o observer) Observe(c *projections.Consumer, b projections.Batch) {
	o.Helper()
	for i := range b.Applied {
		if e := &b.Applied[i]; len(e.Payload) > 0 { // a withheld event has none
			o.check(e.Subject, e.Vocabulary, e.Payload, c.Name)
		}
	}
	if o.next != nil {
		o.next.Observe(c, b)
	}
}
