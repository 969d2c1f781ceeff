package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// A stalled send must not hide the sends that became due meanwhile: with one client all later
// ones wait, and their latency counts from when they were due.
func TestOpenLoadCountsTheWaitForAClient(t *testing.T) {
	const stall = 200 * time.Millisecond
	l := &open{perSecond: 1000, sends: 100, clients: 1, send: func(_, n int) error {
		if n == 0 {
			time.Sleep(stall)
		}
		return nil
	}}
	h, did, err := l.run(t.Context())
	if err != nil || did.events != 100 || h.TotalCount() != 100 {
		t.Fatalf("%d sends, %d latencies, %v", did.events, h.TotalCount(), err)
	}
	// The n-th was due n ms after the first and could not begin before the end of the stall.
	if least := (stall - 100*time.Millisecond).Microseconds(); h.Min() < least*99/100 {
		t.Errorf("a latency of %d us, although no send could begin within %d us of its time", h.Min(), least)
	}
}

func TestOpenLoadEndsAtAnError(t *testing.T) {
	bad := errors.New("refused")
	l := &open{perSecond: 1000, sends: 1 << 20, clients: 3, send: func(_, n int) error {
		if n == 5 {
			return bad
		}
		return nil
	}}
	if _, _, err := l.run(t.Context()); !errors.Is(err, bad) {
		t.Errorf("%v", err)
	}
	var late atomic.Int32
	slow := &open{perSecond: 1e6, sends: 1000, clients: 1, send: func(_, n int) error {
		late.Add(1)
		time.Sleep(10 * time.Millisecond)
		return nil
	}}
	short, enough := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer enough()
	if _, _, err := slow.run(short); !errors.Is(err, context.DeadlineExceeded) || late.Load() > 100 {
		t.Errorf("%d sends were made, %v", late.Load(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l.send = func(_, n int) error {
		if n == 5 {
			cancel()
		}
		return nil
	}
	if _, _, err := l.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestBatchesNeverRepeatAnID(t *testing.T) {
	b, err := newBatch("http://h", &target{feature: "f", tenants: []tenant{{secret: "s"}}}, 3, time.Now())
	must.OK(t, err)
	seen := map[string]bool{}
	for range 40 {
		raw := string(b.next())
		for _, at := range b.ids {
			seen[raw[at:at+idDigits]] = true
		}
	}
	if len(seen) != 120 || !seen["0000000120"] {
		t.Errorf("%d ids of 120", len(seen))
	}
}
