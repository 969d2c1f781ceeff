package overview

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/state"
)

// newLive returns a Live on a clock that the test moves.
func newLive() (*Live, *time.Time) {
	clock := time.Date(2026, 5, 1, 12, 0, 0, 500_000_000, time.UTC)
	return &Live{
		Instance:  "i",
		Verdicts:  new(Verdicts),
		State:     func() *state.State { return new(state.State) },
		Freshness: func() []Distribution { return nil },
		Clock:     func() time.Time { return clock },
	}, &clock
}

// tick samples one second later.
func (l *Live) tick(t *testing.T, clock *time.Time) {
	t.Helper()
	*clock = clock.Add(time.Second)
	must.OK(t, l.next())
}

func (l *Live) shown(t *testing.T) Overview {
	t.Helper()
	f, err := l.Show()
	must.OK(t, err)
	var again Overview
	if err := json.Unmarshal(f.JSON, &again); err != nil || !reflect.DeepEqual(again, f.Overview) {
		t.Fatalf("%v: the JSON is\n%+v, not\n%+v", err, again, f.Overview)
	}
	return f.Overview
}

// A second without a sample is a gap of the history, never an older value, and the ring holds 15 minutes.
func TestTheHistoryHasGapsWhereSamplesAreMissing(t *testing.T) {
	l, clock := newLive()
	l.tick(t, clock)
	l.Verdicts.Add(7, 1, 0, 2)
	l.tick(t, clock)
	*clock = clock.Add(2 * time.Second) // two samples are missing
	l.Verdicts.Add(6, 0, 3, 0)
	l.tick(t, clock)
	h := l.shown(t).History
	value := func(column []*float64, ago int) float64 {
		if at := len(column) - 1 - ago; at >= 0 && column[at] != nil {
			return *column[at]
		}
		return -1
	}
	for ago, want := range map[int]float64{0: 2, 1: -1, 2: -1, 3: 7, 4: 0, 5: -1} {
		if got := value(h.Instance.Accepted, ago); got != want {
			t.Errorf("%d s ago: %v accepted, want %v", ago, got, want)
		}
	}
	if value(h.Instance.Rejected, 3) != 2 || value(h.Instance.Duplicates, 3) != 1 || value(h.Instance.Conflicts, 0) != 1 ||
		h.Installation.Unpublished[4] != nil {
		t.Errorf("%+v", h)
	}
	if len(h.Instance.Accepted) != 5 || h.To.Sub(h.From) != 4*time.Second || !h.To.Equal(clock.Truncate(time.Second)) {
		t.Errorf("%d values from %s to %s", len(h.Instance.Accepted), h.From, h.To)
	}
	for range HistorySeconds {
		l.tick(t, clock)
	}
	if h = l.shown(t).History; len(h.Instance.Accepted) != 900 || h.To.Sub(h.From) != 899*time.Second {
		t.Errorf("%d values from %s to %s", len(h.Instance.Accepted), h.From, h.To)
	}
	for ago := range HistorySeconds {
		if got := value(h.Instance.Accepted, ago); got != 0 {
			t.Fatalf("%d s ago: %v accepted, want 0: an older round of the ring is shown", ago, got)
		}
	}
	*clock = clock.Add(time.Second)
	l.tick(t, clock)
	if got := value(l.shown(t).History.Instance.Accepted, 1); got != -1 {
		t.Errorf("a second without a sample shows %v, of an earlier round", got)
	}
}

// All viewers of a second share one frame, a slow one misses frames and delays no other, and without viewers no frame is encoded.
func TestViewersShareOneSample(t *testing.T) {
	l, clock := newLive()
	l.tick(t, clock)
	if l.Viewed() {
		t.Error("watched without a viewer")
	}
	fast, _ := l.Watch()
	slow, _ := l.Watch()
	if !l.Viewed() {
		t.Error("not watched with viewers")
	}
	var last *Frame
	for range 5 {
		l.tick(t, clock)
		last = <-fast.Frames()
	}
	if got := <-slow.Frames(); got != last || len(got.JSON) == 0 || got.Overview.History != nil {
		t.Errorf("the slow viewer gets %s, want the newest frame of all viewers", got.JSON)
	}
	fast.Close()
	fast.Close() // is idempotent
	slow.Close()
	if l.Viewed() {
		t.Error("watched after the last viewer has gone")
	}
	l.tick(t, clock)
	if l.present.JSON != nil || l.complete != nil {
		t.Error("a frame is encoded that no one views")
	}
	first, _ := l.Show()
	if second, _ := l.Show(); second != first {
		t.Error("two requests in one second encode two frames")
	}
}

func TestFreshnessIsOfTheLastMinute(t *testing.T) {
	l, clock := newLive()
	var counts []uint64
	l.Freshness = func() []Distribution {
		return []Distribution{{"c", []float64{0.01, 0.1, 1}, append([]uint64(nil), counts...)}}
	}
	counts = []uint64{0, 0, 0, 0}
	l.tick(t, clock)
	counts = []uint64{0, 0, 1000, 1000} // all between 0.1 and 1 s
	l.tick(t, clock)
	counts = []uint64{980, 980, 1980, 2000} // 98 % within 10 ms, 2 % above 1 s
	l.tick(t, clock)
	o := l.shown(t)
	if f := o.Instance.Freshness; len(f) != 1 || f[0].Events != 2000 || f[0].P50Seconds < 0.1 || f[0].P50Seconds > 0.2 ||
		f[0].P99Seconds != 1 {
		t.Errorf("in the last minute: %+v", f)
	}
	h := o.History.Instance.Freshness[0]
	if got := *h.P50Seconds[len(h.P50Seconds)-1]; got < 0.005 || got > 0.006 {
		t.Errorf("in the last second: p50 %v s", got)
	}
	for range window {
		l.tick(t, clock)
	}
	if f := l.shown(t).Instance.Freshness; len(f) != 0 {
		t.Errorf("a minute later: %+v", f)
	}
}

// The kinds in the documentation are those of the code.
func TestKindsAreDocumented(t *testing.T) {
	field, _ := reflect.TypeFor[Attention]().FieldByName("Kind")
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	if want := strings.Join(names, ","); field.Tag.Get("enum") != want {
		t.Errorf("documented are %s\nwant %s", field.Tag.Get("enum"), want)
	}
}

// The identity is shown with the age of its comparison, and a broken one first.
func TestTheIdentityIsShownWithItsAge(t *testing.T) {
	l, clock := newLive()
	l.tick(t, clock)
	if l.shown(t).Installation.Identity != nil {
		t.Error("an identity before the first comparison")
	}
	read := &state.State{Pushes: state.Pushes{Failed: 1}, Identity: &state.Comparison{Accepted: 5, Aggregated: 4, Missing: 1,
		ComparedAt: *clock}}
	l.State = func() *state.State { return read }
	*clock = clock.Add(40 * time.Second)
	l.tick(t, clock)
	o := l.shown(t)
	if i := o.Installation.Identity; i == nil || i.Holds || i.Missing != 1 || i.AgeSeconds != 41 {
		t.Errorf("%+v", i)
	}
	if len(o.Attention) != 2 || o.Attention[0].Kind != IdentityBroken || o.Attention[0].Count != 1 {
		t.Errorf("%+v", o.Attention)
	}
	read = &state.State{Pushes: read.Pushes, Identity: &state.Comparison{Holds: true, ComparedAt: *clock}}
	l.tick(t, clock)
	if o := l.shown(t); len(o.Attention) != 1 {
		t.Errorf("%+v after it holds again", o.Attention)
	}
}
