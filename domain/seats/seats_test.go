package seats

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

var some = Config{All: 5, Operators: 2, Heavy: 2, Patience: time.Second}

// TestP9_TenantsWithEndlessRequestsLeaveSeats: each of n tenants sends requests that end only if they lose their seats, again and again.
// Another tenant and an operator get a seat for each of their short requests, and operators lose no seat.
func TestP9_TenantsWithEndlessRequestsLeaveSeats(t *testing.T) {
	for _, n := range []int{1, 4, 8, 30} {
		for _, heavy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := New(some)
				ctx, stop := context.WithCancel(t.Context())
				for range n {
					tenant := uuid.New()
					for range 8 {
						go func() {
							for ctx.Err() == nil {
								if seated, leave, err := s.Acquire(ctx, tenant, heavy); err == nil {
									<-seated.Done()
									leave()
								}
							}
						}()
					}
				}
				time.Sleep(5 * time.Second)
				other, longest := uuid.New(), time.Duration(0)
				endless, leaveEndless, err := s.Acquire(t.Context(), uuid.Nil, heavy)
				if err != nil {
					t.Fatalf("%d tenants: an operator: %v", n, err)
				}
				for i := range 50 {
					began := time.Now()
					_, leave, err := s.Acquire(t.Context(), []uuid.UUID{other, uuid.Nil}[i%2], heavy && i%2 == 0)
					if err != nil {
						t.Fatalf("%d tenants, heavy %t, request %d: %v", n, heavy, i, err)
					}
					longest = max(longest, time.Since(began))
					time.Sleep(5 * time.Millisecond)
					leave()
					time.Sleep(500 * time.Millisecond)
				}
				if longest > slice+2*lookEvery || endless.Err() != nil {
					t.Errorf("%d tenants: a request waited for %s; an operator's request: %v", n, longest, context.Cause(endless))
				}
				leaveEndless()
				stop()
				synctest.Wait()
				if used := s.InUse(); used != 0 {
					t.Errorf("%d requests are left", used)
				}
			})
		}
	}
}

// TestARequestKeepsItsSeatWhileNobodyWaitsWhoUsedLess: its tenant's own requests, and those of a tenant that used seats more, wait.
func TestARequestKeepsItsSeatWhileNobodyWaitsWhoUsedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{All: 2, Operators: 1, Patience: time.Second}) // one of tenants
		a, b := uuid.New(), uuid.New()
		_, leave, err := s.Acquire(t.Context(), b, false)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		leave()
		seated, leave, err := s.Acquire(t.Context(), a, false)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for _, tenant := range []uuid.UUID{a, b} {
				if _, _, err := s.Acquire(t.Context(), tenant, false); !errors.Is(err, ErrBusy) || seated.Err() != nil {
					t.Fatalf("another request: %v; the first one: %v", err, context.Cause(seated))
				}
			}
		}
		go func() { <-seated.Done(); leave() }()
		for range 30 { // by then a owes more
			if seated, leave, err := s.Acquire(t.Context(), b, false); err == nil {
				leave()
				<-seated.Done()
				break
			}
		}
		if !errors.Is(context.Cause(seated), ErrEnded) {
			t.Errorf("the request that used most: %v", context.Cause(seated))
		}
	})
}

// TestRequestsInAnyOrder: a request has a seat exactly if each bound that applies to it has room, and all seats are free in the end.
func TestRequestsInAnyOrder(t *testing.T) {
	over, stop := context.WithCancel(t.Context())
	stop() // no request waits
	tenants := []uuid.UUID{uuid.Nil, uuid.New(), uuid.New(), uuid.New()}
	rapid.Check(t, func(t *rapid.T) {
		s := New(Config{All: rapid.IntRange(1, 20).Draw(t, "all"), Operators: rapid.IntRange(1, 5).Draw(t, "operators"),
			Heavy: rapid.IntRange(1, 5).Draw(t, "heavy")})
		var leaves []func()
		var held []request
		count := func(so func(r *request) bool) (n int) {
			for i := range held {
				if so(&held[i]) {
					n++
				}
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				r := request{tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"), heavy: rapid.Bool().Draw(t, "heavy")}
				own := count(func(o *request) bool { return o.tenant == r.tenant })
				heavy := count(func(o *request) bool { return o.heavy })
				ownHeavy := count(func(o *request) bool { return o.heavy && o.tenant == r.tenant })
				left := max(1, s.All-1) - count(func(o *request) bool { return o.tenant != uuid.Nil && o.tenant != r.tenant })
				room := len(held) < s.All && (!r.heavy || heavy < s.Heavy)
				if r.tenant == uuid.Nil {
					room = room && own < s.Operators && (!r.heavy || ownHeavy < max(1, s.Operators/2))
				} else {
					room = room && 2*own < left && (!r.heavy || 2*ownHeavy < s.Heavy-(heavy-ownHeavy))
				}
				_, leave, err := s.Acquire(over, r.tenant, r.heavy)
				if (err == nil) != room {
					t.Fatalf("%+v beside %d: %v, room %v", r, len(held), err, room)
				}
				if err == nil {
					held, leaves = append(held, r), append(leaves, leave)
				}
			},
			"leave": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("none is held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				leaves[i]()
				held, leaves = append(held[:i:i], held[i+1:]...), append(leaves[:i:i], leaves[i+1:]...)
			},
		})
		for _, leave := range leaves {
			leave()
		}
		if n := s.InUse(); n != 0 {
			t.Errorf("%d are in use in the end", n)
		}
	})
}
