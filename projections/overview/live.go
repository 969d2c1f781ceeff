package overview

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/state"
)

const (
	// MaxViewers bounds the viewers of one instance.
	MaxViewers = 256
	// Every is the interval of samples.
	Every = time.Second
	// window is the number of samples over which the freshness of the present is computed.
	window = 60
)

// ErrTooManyViewers refuses a viewer above MaxViewers.
var ErrTooManyViewers error = &domain.Error{Code: "overloaded", Message: "Too many viewers: an instance serves 256; retry later"}

// Live samples the figures of an instance each second while Run runs, and shows them to viewers.
type Live struct {
	Instance  string
	Verdicts  *Verdicts
	State     func() *state.State      // as the instance last read it
	List      []projections.Projection // that its consumers fold
	Freshness func() []Distribution    // of the consumers of this instance, always in the same order
	Clock     func() time.Time

	mu       sync.Mutex
	started  time.Time
	ring     ring
	last     tally
	window   [window][]Distribution // by the number of the sample
	samples  int
	present  *Frame // of the last sample, without the history
	complete *Frame // of the last sample, with the history; nil: nobody asked for it yet
	viewers  map[*Viewer]struct{}
	ended    bool
}

// Frame is an overview and its JSON. Frames are shared: their readers change no part of them.
type Frame struct {
	Overview Overview
	JSON     []byte
}

// Viewer receives the frame of each second. It gets the newest one only: a viewer that reads slowly misses frames, and
// delays no other.
type Viewer struct {
	live   *Live
	frames chan *Frame
}

// Frames returns the channel of the frames, which have no history. It is closed when the instance stops.
func (v *Viewer) Frames() <-chan *Frame { return v.frames }

// Close ends the viewer.
func (v *Viewer) Close() {
	v.live.mu.Lock()
	defer v.live.mu.Unlock()
	delete(v.live.viewers, v)
}

// Viewed reports whether someone views the state.
func (l *Live) Viewed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.viewers) > 0
}

// Watch adds a viewer, or returns ErrTooManyViewers.
func (l *Live) Watch() (*Viewer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := &Viewer{l, make(chan *Frame, 1)}
	if l.ended {
		close(v.frames)
		return v, nil
	}
	if len(l.viewers) >= MaxViewers {
		return nil, ErrTooManyViewers
	}
	if l.viewers == nil {
		l.viewers = map[*Viewer]struct{}{}
	}
	l.viewers[v] = struct{}{}
	return v, nil
}

// Now returns the last sample. All calls within a second share one frame.
func (l *Live) Now() (*Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now()
}

func (l *Live) now() (*Frame, error) {
	if l.samples == 0 {
		l.sample()
	}
	return l.present, l.present.encode()
}

// Show is Now with the history.
func (l *Live) Show() (*Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.complete == nil {
		now, err := l.now()
		if err != nil {
			return nil, err
		}
		f := &Frame{Overview: now.Overview}
		f.Overview.History = l.ring.history(f.Overview.At.Unix())
		l.complete = f
	}
	return l.complete, l.complete.encode()
}

// Run samples in the middle of each second until ctx ends. Then it ends all viewers.
func (l *Live) Run(ctx context.Context) error {
	defer l.end()
	if err := l.next(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(untilMiddle(l.Clock())): // samples near the end of a second would leave gaps
	}
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		if err := l.next(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// untilMiddle is the time until the middle of a second.
func untilMiddle(now time.Time) time.Duration {
	return (3*Every/2 - time.Duration(now.Nanosecond())) % Every
}

// next samples once and sends the frame to the viewers. Without viewers it encodes no frame.
func (l *Live) next() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sample()
	if len(l.viewers) == 0 {
		return nil
	}
	f, err := l.now()
	if err != nil {
		return err
	}
	for v := range l.viewers {
		select {
		case <-v.frames: // not read yet
		default:
		}
		v.frames <- f // the only sender, so that there is room
	}
	return nil
}

// sample takes the figures of the present second. The caller holds the lock.
func (l *Live) sample() {
	now := l.Clock()
	if l.samples == 0 {
		l.started, l.last = now.UTC(), tally{at: now}
	}
	counts, distributions := l.Verdicts.at(now), l.Freshness()
	read := l.State()
	of := installation(read, l.List, now)
	s := sample{second: now.Unix(), rates: counts.since(l.last), read: of.ReadAt != nil, outbox: of.Outbox, lags: of.Consumers}
	oldest := l.window[l.samples%window]
	previous := l.window[(l.samples+window-1)%window]
	o := Overview{At: now.UTC(), Instance: Instance{ID: l.Instance, StartedAt: l.started, PerSecond: s.rates, Freshness: []Freshness{}},
		Installation: of, Attention: attention(read)}
	for i := range distributions {
		d := &distributions[i]
		if f := d.since(at(oldest, i)); f.Events > 0 {
			o.Instance.Freshness = append(o.Instance.Freshness, f)
		}
		if f := d.since(at(previous, i)); f.Events > 0 {
			s.freshness = append(s.freshness, f)
		}
	}
	l.ring.add(s)
	l.window[l.samples%window] = slices.Clone(distributions)
	l.last, l.present, l.complete = counts, &Frame{Overview: o}, nil
	l.samples++
}

func at(list []Distribution, i int) *Distribution {
	if i >= len(list) {
		return nil
	}
	return &list[i]
}

// encode sets JSON, once.
func (f *Frame) encode() (err error) {
	if f.JSON != nil {
		return nil
	}
	if f.JSON, err = json.Marshal(&f.Overview); err != nil {
		return fmt.Errorf("encoding an overview: %w", err)
	}
	return nil
}

// end closes the viewers' channels.
func (l *Live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for v := range l.viewers {
		close(v.frames)
	}
	l.viewers = nil
}
