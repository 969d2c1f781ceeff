package meterplex

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// exit ends the test program.
var exit = os.Exit

// runChild records events until it is killed, and prints the id of each for which Record has returned.
func runChild() bool {
	dir := os.Getenv("METERPLEX_TEST_CHILD")
	if dir == "" {
		return false
	}
	c, err := New("http://127.0.0.1:1", "mp_test_key", dir, &Options{OnError: func(*Error) {}})
	if err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for {
				e, err := c.Record(context.Background(), Event{Feature: "api_calls", Amount: 1})
				if err != nil {
					panic(err)
				}
				fmt.Println(e.EventID)
			}
		}()
	}
	select {}
}

// Each event for which Record returned in a killed process is counted once.
func TestKilledProcessesLoseNothing(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	confirmed := map[string]bool{}
	for range 5 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "METERPLEX_TEST_CHILD="+dir)
		out, err := child.StdoutPipe()
		ok(t, err)
		ok(t, child.Start())
		lines := 0
		text := make([]byte, 0, 1<<20)
		for lines < 50 {
			b := make([]byte, 4096)
			n, err := out.Read(b)
			ok(t, err)
			text = append(text, b[:n]...)
			lines = strings.Count(string(text), "\n")
		}
		ok(t, child.Process.Kill())
		_ = child.Wait()
		for line := range strings.Lines(string(text)) {
			if id, whole := strings.CutSuffix(line, "\n"); whole {
				confirmed[id] = true
			}
		}
	}
	c, got := newClient(t, s, dir, nil)
	flush(t, c)
	for id := range confirmed {
		if _, counted := s.payloads[id]; !counted {
			t.Errorf("%s is lost", id)
		}
	}
	if st := c.Stats(); len(confirmed) < 250 || st.Damaged != 0 || st.Duplicates != 0 || len(got.codes()) != 0 {
		t.Errorf("%d confirmed, %+v, %v", len(confirmed), st, got.codes())
	}
}

// A full queue lets Record wait until its deadline; once there is space, it returns.
func TestAFullQueue(t *testing.T) {
	s := newService(t)
	down := true
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ []json.RawMessage) bool {
		if down {
			w.WriteHeader(503)
		}
		return down
	}
	c, _ := newClient(t, s, t.TempDir(), func(o *Options) { o.QueueBytes = 300 })
	record(t, c, "a", "b", "c")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Record(short, Event{EventID: "d", Feature: "api_calls", Amount: 1}); code(err) != "queue_full" {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, err := c.Record(t.Context(), Event{EventID: "e", Feature: "api_calls", Amount: 1})
		waits <- err
	}()
	s.with(func() { down = false })
	ok(t, <-waits)
	flush(t, c)
	if fmt.Sprint(s.order) != "[a b c e]" {
		t.Error(s.order)
	}
}

// A client whose queue was taken over while it was frozen writes again what it has not confirmed: nothing is lost.
func TestATakenQueueIsLeft(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	c, _ := newClient(t, s, dir, func(o *Options) { o.BatchAge = time.Hour })
	record(t, c, "a")
	queues, _ := filepath.Glob(filepath.Join(dir, "q-*"))
	if len(queues) != 1 {
		t.Fatal(queues)
	}
	taken := filepath.Join(t.TempDir(), "q-taken") // another client renames it, and may be done with it before the next record
	ok(t, os.Rename(queues[0], taken))
	record(t, c, "b")
	flush(t, c)
	if fmt.Sprint(s.order) != "[b]" { // a is the other client's
		t.Error(s.order)
	}
	if st := c.Stats(); st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
}

// An invalid event is refused with the service's code, and nothing of its call is stored.
func TestInvalidEventsAreNotStored(t *testing.T) {
	s := newService(t)
	c, _ := newClient(t, s, t.TempDir(), nil)
	_, err := c.RecordMany(t.Context(), []Event{{Feature: "f", Amount: 1}, {Feature: "f", Amount: -1}})
	if code(err) != "amount_invalid" || c.Stats().Waiting != 0 {
		t.Error(err, c.Stats())
	}
	flush(t, c)
	if len(s.order) != 0 {
		t.Error(s.order)
	}
}

// Concurrent calls share the writes, and keep their events.
func TestConcurrentRecords(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	c, _ := newClient(t, s, dir, nil)
	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				_, err := c.Record(t.Context(),
					Event{Feature: "api_calls", Amount: 1, Metadata: map[string]any{"fill": strings.Repeat("x", 4000)}})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	flush(t, c)
	if st := c.Stats(); len(s.order) != 1000 || st.Accepted != 1000 {
		t.Errorf("%+v", st)
	}
}

// A queue whose disk fails is left, and what it confirmed is sent.
func TestAFailingQueueIsReplaced(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	c, _ := newClient(t, s, dir, func(o *Options) { o.BatchAge = time.Hour })
	record(t, c, "a")
	queues, _ := filepath.Glob(filepath.Join(dir, "q-*"))
	ok(t, os.Remove(filepath.Join(queues[0], "owner")))
	ok(t, os.Mkdir(filepath.Join(queues[0], "owner"), 0o700)) // it cannot be read
	_, err := c.Record(t.Context(), Event{EventID: "b", Feature: "api_calls", Amount: 1})
	if code(err) != "queue_failed" {
		t.Fatal(err)
	}
	record(t, c, "c")
	flush(t, c)
	if fmt.Sprint(s.order) != "[a c]" {
		t.Error(s.order)
	}
}

func TestNewRefusesBadInput(t *testing.T) {
	for _, in := range [][3]string{{"", "k", "d"}, {"ftp://x", "k", "d"}, {"http://", "k", "d"}, {"http://x?y", "k", "d"},
		{"http://x", "", "d"}, {"http://x", "a b", "d"}, {"http://x", "k\n", "d"}, {"http://x", "k", ""}} {
		if _, err := New(in[0], in[1], in[2], nil); code(err) != "invalid_argument" {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, o := range []Options{{Durability: "x"}, {CheckPolicy: "x"}, {BatchEvents: -1}, {QueueBytes: -1}, {BatchAge: -1}} {
		if _, err := New("http://x", "k", "d", &o); code(err) != "invalid_argument" {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := New("http://x", "k", "/dev/null/x", nil); code(err) != "queue_failed" {
		t.Error(err)
	}
}
