package jsonschema

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections"
)

// golden returns the example of a subject's payload.
func golden(t testing.TB, info events.SubjectInfo) []byte {
	t.Helper()
	stored, err := os.ReadFile(filepath.Join("..", "..", "events", "testdata", info.Name()+".json"))
	must.OK(t, err)
	return stored
}

// recordedInfo is the subject whose payload the tests change.
func recordedInfo() events.SubjectInfo {
	info, _ := events.UsageRecorded.Info()
	return info
}

func TestEveryExampleIsLikeItsSchema(t *testing.T) {
	s := New()
	for _, info := range events.Subjects() {
		if err := s.Check(info.Subject, nil, golden(t, info)); err != nil {
			t.Errorf("%s: %v", info.Name(), err)
		}
	}
	if err := s.Check(999, nil, []byte(`{}`)); err != ErrUnknown {
		t.Errorf("an unknown subject: %v", err)
	}
}

// Payloads must not reach the log, so an error names members and rules only.
func TestErrorsContainNoValues(t *testing.T) {
	for payload, want := range map[string]string{
		`{"amount":"SECRET"}`: "/amount breaks type",
		`{"amount":1,"eventId":"SECRET","feature":"f","timestamp":"SECRET","type":"usage"}`:               "/timestamp breaks format",
		`{"amount":1,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"SECRET"}`:     "/type breaks enum",
		`{"amount":99999999999999999999,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z"}`:  "/amount breaks maximum",
		`{"amount":1,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z","metadata":"SECRET"}`: "/metadata breaks type",
		`SECRET`: "not JSON",
	} {
		err := New().Check(events.UsageRecorded, nil, []byte(payload))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "99999") {
			t.Errorf("%s: %v", payload, err)
		}
	}
}

// counts are the results of a sampler's checks.
type counts struct{ checked, refused int }

func (c *counts) add(_ events.Subject, refused bool) {
	c.checked++
	if refused {
		c.refused++
	}
}

func newSampler(every int64) (*Sampler, *counts, *bytes.Buffer) {
	seen, out := &counts{}, &bytes.Buffer{}
	return NewSampler(every, slog.New(slog.NewTextHandler(out, nil)), time.Now, seen.add), seen, out
}

// running runs a sampler until all of its queue is checked.
func running(t *testing.T, s *Sampler, do func()) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	do()
	synctest.Wait()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A payload unlike its schema is counted each time, and logged once a minute without its values.
func TestRefusalsAreCountedAndLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, seen, out := newSampler(1)
		bad := json.RawMessage(`{"amount":-5,"eventId":"SECRET"}`)
		running(t, s, func() {
			for range 3 {
				s.Written(2, func(i int) (events.Subject, []byte) {
					return events.UsageRecorded, [][]byte{golden(t, recordedInfo()), bad}[i]
				})
				synctest.Wait()
				time.Sleep(25 * time.Second)
			}
			if *seen != (counts{6, 3}) || strings.Count(out.String(), "unlike its schema") != 1 {
				t.Errorf("%+v: %s", *seen, out)
			}
			time.Sleep(time.Minute)
			s.Observer(none{}).Observe(&projections.Consumer{Name: "c"}, projections.Batch{Applied: []events.Envelope{{Subject: events.UsageRecorded, Payload: bad}, {Subject: events.UsageRecorded, Withheld: true}}})
		})
		if *seen != (counts{7, 4}) || strings.Count(out.String(), "unlike its schema") != 2 || strings.Contains(out.String(), "SECRET") || strings.Contains(out.String(), "-5") {
			t.Errorf("%+v: %s", *seen, out)
		}
	})
}

type none struct{}

func (none) Observe(*projections.Consumer, projections.Batch) {}

// Without Run, or with one that is behind, payloads are left out instead of waiting.
func TestAFullQueueDelaysNothing(t *testing.T) {
	s, _, _ := newSampler(1)
	for range 3 * maxQueue {
		s.Written(1, func(int) (events.Subject, []byte) { return events.UsageRecorded, []byte(`{}`) })
	}
	if len(s.queue) != maxQueue {
		t.Errorf("%d wait", len(s.queue))
	}
}

// One of N events is checked, of each of two subjects that alternate.
func TestOneOfManyEventsIsSampled(t *testing.T) {
	s, _, _ := newSampler(10)
	found := map[events.Subject]int{}
	for range 5000 {
		s.Written(4, func(i int) (events.Subject, []byte) {
			subject := events.UsageRecorded + events.Subject(i%2)
			found[subject]++
			return subject, nil
		})
	}
	for _, subject := range []events.Subject{events.UsageRecorded, events.UsageValidated} {
		if n := found[subject]; n < 800 || n > 1200 {
			t.Errorf("%d of 10000 events of subject %d are in the sample", n, subject)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
