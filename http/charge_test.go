package http

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

func TestAChargeGivesBackWhatItTook(t *testing.T) {
	s := &service{limits: Limits{Memory: 200_000, EventsBurst: 1}, now: time.Now, ingestRate: newRates()}
	x := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	y := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	if s.open(x) != nil || x.charge.acquire(100_000) || !x.charge.acquire(40_000) || x.charge.fits(40_000) || !x.charge.fits(20_000) {
		t.Error("a tenant has not its half, or more than that")
	}
	if s.open(y) != nil || !y.charge.acquire(66_000) {
		t.Error("another tenant has not its own half")
	}
	if p := s.open(&exchange{}); p == nil || p.Code != "overloaded" || p.retryAfter < 1 {
		t.Errorf("more than all is taken: %v", p)
	}
	x.charge.close()
	y.charge.close()
	if n := s.memory.n.Load(); n != 0 || x.charge.share.n.Load() != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}

// BenchmarkCharge measures the cost of the memory bound per request.
func BenchmarkCharge(b *testing.B) {
	s := &service{limits: DefaultLimits(), now: time.Now, ingestRate: newRates()}
	x := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	b.ReportAllocs()
	for b.Loop() {
		if s.open(x) != nil || !x.charge.fits(200) || !x.charge.acquire(201) {
			b.Fatal("refused")
		}
		x.charge.close()
	}
}
