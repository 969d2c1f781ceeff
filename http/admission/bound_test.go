package admission

import (
	"sync"
	"testing"
)

// TestP9_TenantsNeverReachTheEndOfABound: each tenant takes all that it can, one unit or many at a time.
func TestP9_TenantsNeverReachTheEndOfABound(t *testing.T) {
	for _, n := range []int64{1, 7} {
		b := reserved(8192, 0)
		tenants := make([]Counter, 10)
		for i := range tenants {
			free := b.limit - b.reserve - b.Load()
			for b.Fits(n, &tenants[i]) && b.Acquire(n, &tenants[i]) {
				continue
			}
			if b.Acquire(n, &tenants[i]) || tenants[i].Load() > free/2 || tenants[i].Load() < free/2-n {
				t.Errorf("tenant %d holds %d of %d free", i, tenants[i].Load(), free)
			}
		}
		for i := range b.reserve {
			if !b.Acquire(1, nil) {
				t.Fatalf("operators have %d of their %d units", i, b.reserve)
			}
		}
		b.Release(b.reserve, nil)
		for range 100 { // each returns all that it holds, and takes all that it can again
			for i := range tenants {
				b.Release(tenants[i].Load(), &tenants[i])
				for b.Acquire(1, &tenants[i]) {
					continue
				}
			}
		}
		fair := (b.limit - b.reserve) / int64(len(tenants)+1)
		for i := range tenants {
			if held := tenants[i].Load(); held < fair*9/10 || held > fair*11/10 {
				t.Errorf("tenant %d holds %d, its equal share is %d", i, held, fair)
			}
		}
	}
}

// TestP9_OperatorsLeaveTenantsAReserve: operators hold all that they can, one unit or many at a time.
func TestP9_OperatorsLeaveTenantsAReserve(t *testing.T) {
	b := reserved(8192, 0)
	for _, n := range []int64{100, 1} {
		for b.Acquire(n, nil) {
			continue
		}
	}
	if b.Load() != b.limit-b.reserve || b.Fits(1, nil) {
		t.Errorf("operators hold %d", b.Load())
	}
	for i, tenants := int64(2), make([]Counter, 5); i <= 32; i *= 2 {
		own := &tenants[0]
		tenants = tenants[1:]
		for b.Acquire(1, own) {
			continue
		}
		if own.Load() != b.reserve/i {
			t.Errorf("a tenant holds %d, of the reserve 1/%d is %d", own.Load(), i, b.reserve/i)
		}
	}
}

// TestABoundIsExactWhenItIsSharedByMany: no unit is lost, and no more are held than the bound allows, whatever is taken at once.
func TestABoundIsExactWhenItIsSharedByMany(t *testing.T) {
	b := Bound{limit: 64, reserve: 8, each: 6}
	var tenants [16]Counter
	var all sync.WaitGroup
	for i := range tenants {
		for range 4 {
			all.Go(func() {
				for range 500 {
					if b.Acquire(2, &tenants[i]) {
						if tenants[i].Load() > 6+2*3 || b.Load() > 56 { // three others may be refused just now
							t.Errorf("%d of %d", tenants[i].Load(), b.Load())
						}
						b.Release(2, &tenants[i])
					}
				}
			})
		}
	}
	all.Wait()
	for i := range tenants {
		if tenants[i].Load() != 0 || b.Load() != 0 {
			t.Errorf("%d, %d are held by nobody", tenants[i].Load(), b.Load())
		}
	}
}
