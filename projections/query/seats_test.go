package query

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/internal/must"
)

// Takes and leaves in any order: a read has seats exactly if every bound that applies to it has
// room, and all seats are free in the end.
func TestSeatsBoundReadersInAnyOrder(t *testing.T) {
	over, stop := context.WithCancel(context.Background())
	stop() // no read waits
	tenants := []uuid.UUID{uuid.New(), uuid.New(), uuid.New(), uuid.New()}
	rapid.Check(t, func(t *rapid.T) {
		connections := rapid.IntRange(1, 20).Draw(t, "connections")
		reserved := rapid.IntRange(0, 4).Draw(t, "reserved")
		s := NewSeats(connections, reserved)
		lists := max(1, connections-reserved)
		if n := cap(s.lists) + cap(s.system) + cap(s.checks); reserved > 1 && connections > reserved && n != connections {
			t.Fatalf("%d seats for %d connections", n, connections)
		}
		type running struct {
			v     Viewer
			k     kind
			leave func()
		}
		var all []running
		count := func(so func(r *running) bool) (n int) {
			for i := range all {
				if so(&all[i]) {
					n++
				}
			}
			return n
		}
		list := func(r *running) bool { return r.k == ordinary || r.k == heavy }
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				v := Viewer{Operator: rapid.Bool().Draw(t, "operator")}
				if !v.Operator {
					v.TenantID = rapid.SampledFrom(tenants).Draw(t, "tenant")
				}
				k := rapid.SampledFrom([]kind{ordinary, heavy, system, check}).Draw(t, "kind")
				own := func(r *running) bool { return list(r) && r.v == v }
				room := count(own) < max(1, connections/4) && count(list) < lists &&
					(v.Operator || count(func(r *running) bool { return list(r) && !r.v.Operator }) < max(1, lists-1))
				switch k {
				case heavy:
					room = room && count(func(r *running) bool { return own(r) && r.k == heavy }) < max(1, connections/4/2) &&
						count(func(r *running) bool { return r.k == heavy }) < max(1, lists/2)
				case system:
					room = count(func(r *running) bool { return r.k == system }) < 1
				case check:
					room = count(func(r *running) bool { return r.k == check }) < max(1, reserved-1)
				}
				leave, err := s.acquire(over, v, k)
				if (err == nil) != room {
					t.Fatalf("%v of kind %d with %d reads: %v, room %v", v, k, len(all), err, room)
				}
				if err == nil {
					all = append(all, running{v, k, leave})
				}
			},
			"leave": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				all[i].leave()
				all = append(all[:i], all[i+1:]...)
			},
		})
		for _, r := range all {
			r.leave()
		}
		noneTaken(t, s)
	})
}

func noneTaken(t interface{ Errorf(string, ...any) }, s *Seats) {
	if n := s.InUse(); n != 0 {
		t.Errorf("%d are in use in the end", n)
	}
}

// A tenant whose reads wait for its own seats holds no seat that other tenants need.
func TestP9_ReadsThatWaitForTheirTenantHoldNothing(t *testing.T) {
	s := NewSeats(8, ReservedSeats)
	a, b := Viewer{TenantID: uuid.New()}, Viewer{TenantID: uuid.New()}
	ctx, refuse := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var leaves []func()
	for range 2 {
		leave, err := s.acquire(ctx, a, ordinary)
		must.OK(t, err)
		leaves = append(leaves, leave)
	}
	for n := range 100 {
		all.Go(func() {
			if _, err := s.acquire(ctx, a, kind(n%2)); !errors.Is(err, context.Canceled) {
				t.Errorf("a read beyond its tenant's seats: %v", err)
			}
		})
	}
	for end := time.Now().Add(5 * time.Minute); s.waiting(a) != 102; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not all wait")
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop() // these reads do not wait
	for n := range 1000 {
		leave, err := s.acquire(over, []Viewer{b, {Operator: true}}[n%2], heavy)
		if err != nil {
			t.Errorf("a read of another reader, at turn %d: %v", n, err)
			break
		}
		leave()
	}
	refuse()
	all.Wait()
	for _, leave := range leaves {
		leave()
	}
	noneTaken(t, s)
}

// waiting counts the reads of a tenant that run or wait.
func (s *Seats) waiting(v Viewer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readers[v.TenantID].reads
}
