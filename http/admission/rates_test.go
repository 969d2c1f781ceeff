package admission

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestBucketsRefillIndependently(t *testing.T) {
	r, start := NewRates(10, 100), time.Unix(1_800_000_000, 0)
	a, b := uuid.New(), uuid.New()
	if _, _, ok := r.Take(a, 100, start); !ok {
		t.Error("a full bucket gives nothing")
	}
	if _, wait, ok := r.Take(a, 50, start); ok || wait != 5*time.Second {
		t.Errorf("an empty bucket gives, or tells to wait %s", wait)
	}
	if _, _, ok := r.Take(b, 100, start); !ok {
		t.Error("one tenant drinks from another's bucket")
	}
	if left, _, ok := r.Take(a, 50, start.Add(5*time.Second)); !ok || left != 0 {
		t.Errorf("%v left", left)
	}
	if _, _, ok := r.Take(a, 1000, start.Add(time.Hour)); !ok {
		t.Error("a batch over the whole burst is never taken")
	}
	if _, wait, ok := r.Take(a, 1, start.Add(time.Hour)); ok || wait < 90*time.Second {
		t.Errorf("its debt is forgotten: %s", wait)
	}
	if _, _, ok := r.Take(a, 100, start.Add(time.Minute)); ok {
		t.Error("a clock that goes back fills buckets")
	}
}
