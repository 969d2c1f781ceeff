package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeLog is the API's tail of a log with two partitions.
type fakeLog struct {
	mu     sync.Mutex
	events []string // positions, in the order of their times
	reads  int
}

func (l *fakeLog) add(positions ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, positions...)
}

func (l *fakeLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	at := place{{"0", 0}, {"1", 0}}
	after := r.URL.Query().Get("after")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = last
	}
	at.upTo(placeOf(after))
	for _, position := range l.events {
		if of := placeOf(position); at.pass(of[0]) {
			if _, err := fmt.Fprintf(w, "id: %s\ndata: {\"position\":%q}\n\n", at, position); err != nil {
				return
			}
		}
	}
	fmt.Fprintf(w, ": end\nid: %s\n\n", at)
}

// tailed is a viewer of a tail. Its body can be read while the tail goes on.
type tailed struct {
	*httptest.ResponseRecorder
	mu    sync.Mutex
	stuck chan struct{} // if set, each write waits for it
}

func (v *tailed) Write(b []byte) (int, error) {
	if v.stuck != nil {
		<-v.stuck
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ResponseRecorder.Write(b)
}

func (v *tailed) Flush() {}

var writtenPosition = regexp.MustCompile(`data: <p>([01]-[0-9]+)</p>`)

func (v *tailed) positions() (all []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range writtenPosition.FindAllStringSubmatch(v.Body.String(), -1) {
		all = append(all, m[1])
	}
	return all
}

// watch opens the tail of a fixture, and returns a function that ends it.
func (f *fixture) watch(v *tailed, lastID string) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r := httptest.NewRequest(http.MethodGet, Prefix+"/log/stream", nil).WithContext(ctx)
	r.Header.Set("Cookie", f.session)
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.routes["GET "+Prefix+"/log/stream"].ServeHTTP(v, r)
	}()
	return func() { cancel(); <-done }
}

func newTailFixture(t *testing.T) (*fixture, *fakeLog) {
	t.Helper()
	f, log := newFixture(t), new(fakeLog)
	f.api = log.ServeHTTP
	template, err := f.templates.set.New("position").Parse(`<p>{{.position}}</p>`)
	if err != nil || template == nil {
		t.Fatal(err)
	}
	s := &stream{path: Prefix + "/log/stream", template: "position", shared: true, request: func(*visit) (string, url.Values) { return api("log"), url.Values{} }}
	f.tailed = s
	f.routes["GET "+s.path] = f.handler(f.stream(&page{who: operator, scopes: admins()}, s))
	return f, log
}

func awaited(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestTail_ViewersShareOneReadASecond, and each sees each event once, in the order of its partition, wherever it began.
func TestTail_ViewersShareOneReadASecond(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-1", "1-1", "0-2")
	var viewers []*tailed
	want, since := 3, time.Now()
	for n := range 20 {
		v := &tailed{ResponseRecorder: httptest.NewRecorder()}
		viewers = append(viewers, v)
		defer f.watch(v, "")()
		log.add(fmt.Sprint("0-", 3+n), fmt.Sprint("1-", 2+n))
		want += 2
	}
	for _, v := range viewers {
		awaited(t, "all events", func() bool { return len(v.positions()) >= want })
	}
	awaited(t, "20 viewers of one tail", func() bool { return f.tailViewers() == 20 })
	for n := range 30 {
		log.add(fmt.Sprint("0-", 100+n), fmt.Sprint("1-", 100+n))
		time.Sleep(50 * time.Millisecond)
	}
	want += 60
	for _, v := range viewers {
		awaited(t, "the events of the shared reads", func() bool { return len(v.positions()) >= want })
	}
	log.mu.Lock()
	reads := log.reads
	log.mu.Unlock()
	// Each viewer reads once before it joins the others, and once after.
	if most := 2*len(viewers) + 2 + int(time.Since(since)/tailEvery); reads > most {
		t.Errorf("20 viewers caused %d reads, more than %d", reads, most)
	}
	for n, v := range viewers {
		checkOnce(t, fmt.Sprint("viewer ", n), v.positions(), want)
	}
}

// tailViewers counts the viewers of shared tails.
func (c *Console) tailViewers() (n int) {
	c.tails.mu.Lock()
	defer c.tails.mu.Unlock()
	for _, shared := range c.tails.all {
		n += len(shared.viewers)
	}
	return n
}

func checkOnce(t *testing.T, name string, positions []string, want int) {
	t.Helper()
	last := map[string]int{}
	for _, at := range positions {
		partition, digits, _ := strings.Cut(at, "-")
		number, _ := strconv.Atoi(digits)
		if number <= last[partition] {
			t.Errorf("%s: %s after %d", name, at, last[partition])
		}
		last[partition] = number
	}
	if len(positions) != want {
		t.Errorf("%s: %d events instead of %d", name, len(positions), want)
	}
}

// TestTail_AViewerThatFallsBehindMissesNothing, and it delays no other viewer.
func TestTail_AViewerThatFallsBehindMissesNothing(t *testing.T) {
	f, log := newTailFixture(t)
	slow, fast := &tailed{ResponseRecorder: httptest.NewRecorder(), stuck: make(chan struct{})}, &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(slow, "")()
	slow.stuck <- struct{}{} // its begin
	defer f.watch(fast, "")()
	awaited(t, "both are viewers", func() bool { return f.tailViewers() == 2 })
	total := 2*tailPage + 10
	for n := range total {
		log.add(fmt.Sprint("0-", n+1))
		if n == 0 {
			awaited(t, "the first event", func() bool { return len(fast.positions()) == 1 })
		}
	}
	awaited(t, "the fast one has all", func() bool { return len(fast.positions()) == total })
	close(slow.stuck)
	awaited(t, "the slow one has all", func() bool { return len(slow.positions()) >= total })
	checkOnce(t, "slow", slow.positions(), total)
	checkOnce(t, "fast", fast.positions(), total)
}

// TestTail_GoesOnAfterTheLastEvent of a browser that connects again: its id names the place in each partition.
func TestTail_GoesOnAfterTheLastEvent(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-1", "1-1", "0-2", "1-2")
	first := &tailed{ResponseRecorder: httptest.NewRecorder()}
	end := f.watch(first, "")
	awaited(t, "four events", func() bool { return len(first.positions()) == 4 })
	end()
	ids := regexp.MustCompile(`(?m)^id: (.*)$`).FindAllStringSubmatch(first.Body.String(), -1)
	log.add("1-3")
	second := &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(second, ids[1][1])()
	awaited(t, "the events behind the second", func() bool { return len(second.positions()) >= 3 })
	if got := second.positions(); !slices.Equal(got, []string{"0-2", "1-2", "1-3"}) {
		t.Errorf("after %s the events are %v", ids[1][1], got)
	}
	awaited(t, "one viewer of a tail", func() bool { return f.tailViewers() == 1 })
}

// TestTail_AReadThatBrokeOffIsRepeated: what is behind it may have been sent by the shared tail before the viewer joined it.
func TestTail_AReadThatBrokeOffIsRepeated(t *testing.T) {
	f, log := newTailFixture(t)
	first, second := &tailed{ResponseRecorder: httptest.NewRecorder()}, &tailed{ResponseRecorder: httptest.NewRecorder()}
	var broken atomic.Bool
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Query().Get("after"), "0-5,") && f.tailViewers() == 2 && broken.CompareAndSwap(false, true) {
			fmt.Fprint(w, "retry: 1000\n\n") // the database went away
			return
		}
		log.ServeHTTP(w, r)
		if r.Header.Get("Last-Event-ID") != "" { // the second has read up to the end of then
			log.add("0-6")
			awaited(t, "the shared tail has sent it", func() bool { return len(first.positions()) == 6 })
		}
	}
	defer f.watch(first, "")()
	awaited(t, "one viewer", func() bool { return f.tailViewers() == 1 })
	log.add("0-1", "0-2", "0-3", "0-4", "0-5")
	awaited(t, "five events", func() bool { return len(first.positions()) == 5 })
	defer f.watch(second, "0-3,1-0")()
	awaited(t, "two viewers", func() bool { return f.tailViewers() == 2 })
	log.add("0-7")
	awaited(t, "the newest event", func() bool { return slices.Contains(second.positions(), "0-7") })
	if got := second.positions(); !broken.Load() || !slices.Equal(got, []string{"0-4", "0-5", "0-6", "0-7"}) {
		t.Errorf("a read broke off (%v): %v", broken.Load(), got)
	}
}

// TestTail_OfAPlaceWithoutSomePartitionsBeginsThemAtTheirBegin, as the API does.
func TestTail_OfAPlaceWithoutSomePartitionsBeginsThemAtTheirBegin(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-1", "1-1")
	for n := range tailPage + 10 {
		log.add(fmt.Sprint("1-", n+2))
	}
	v := &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(v, "0-1")()
	awaited(t, "the events of the other partition", func() bool { return len(v.positions()) >= tailPage+11 })
	checkOnce(t, "viewer", v.positions(), tailPage+11)
}

// TestTail_OfAPlaceBehindTheEndLosesNothingOfOthers: such a place is invented, or of events that a restore has undone. Its viewer may be the first of a tail.
func TestTail_OfAPlaceBehindTheEndLosesNothingOfOthers(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-1", "1-1")
	ahead, other := &tailed{ResponseRecorder: httptest.NewRecorder()}, &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(ahead, "0-100,1-0")()
	awaited(t, "the tail of the first", func() bool { return f.tailViewers() == 1 && len(ahead.positions()) == 1 })
	defer f.watch(other, "0-1,1-1")()
	awaited(t, "two viewers of one tail", func() bool { return f.tailViewers() == 2 })
	for n := range 5 { // the first ones may be in its own reads
		log.add(fmt.Sprint("0-", n+2), fmt.Sprint("1-", n+2))
		awaited(t, "the events of the second", func() bool { return len(other.positions()) == 2*n+2 })
	}
	checkOnce(t, "other", other.positions(), 10)
	awaited(t, "the other partition of the first", func() bool { return len(ahead.positions()) >= 6 })
	if got := ahead.positions(); len(got) != 6 || slices.ContainsFunc(got, func(at string) bool { return at[0] == '0' }) {
		t.Errorf("the first sees %v", got)
	}
}

func (v *tailed) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.Body.String()
}

// TestTail_ALongReadTellsItsPlace: a heartbeat of the API is passed on, so that no proxy ends the stream and a browser that connects again goes on
// behind the part of the log that was read.
func TestTail_ALongReadTellsItsPlace(t *testing.T) {
	f, log := newTailFixture(t)
	log.add("0-101")
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("after") != "" {
			log.ServeHTTP(w, r)
			return
		}
		if _, err := fmt.Fprint(w, "retry: 1000\n\n: alive\nid: 0-100,1-0\n\n"); err == nil {
			<-r.Context().Done() // it reads on for a long time
		}
	}
	v := &tailed{ResponseRecorder: httptest.NewRecorder()}
	defer f.watch(v, "")()
	awaited(t, "a heartbeat with the place", func() bool { return strings.Contains(v.text(), ": alive\nid: 0-100,1-0\n\n") })
	awaited(t, "the event behind it", func() bool { return len(v.positions()) > 0 })
	checkOnce(t, "viewer", v.positions(), 1)
}
