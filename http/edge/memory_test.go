package edge

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/internal/must"
)

func edgeOf(t testing.TB, l admission.Limits) *Edge {
	t.Helper()
	e, err := New(Config{Limits: l})
	must.OK(t, err)
	return e
}

func TestAChargeReleasesItsMemory(t *testing.T) {
	s := edgeOf(t, admission.Limits{Memory: 200_000, EventsBurst: 1})
	x := &Exchange{Caller: commands.Caller{TenantID: uuid.New()}, Tenant: &domain.Tenant{}}
	y := &Exchange{Caller: commands.Caller{TenantID: uuid.New()}, Tenant: &domain.Tenant{}}
	if s.open(x) != nil || x.charge.Acquire(100_000) || !x.charge.Acquire(40_000) || x.charge.Fits(40_000) || !x.charge.Fits(20_000) {
		t.Error("a tenant has not its half, or more than that")
	}
	if s.open(y) != nil || !y.charge.Acquire(66_000) {
		t.Error("another tenant has not its own half")
	}
	if p := s.open(&Exchange{}); p == nil || p.Code != "overloaded" || p.GetHeaders().Get("Retry-After") == "" {
		t.Errorf("more than the bound is accepted: %v", p)
	}
	x.charge.Close()
	y.charge.Close()
	if n := s.memory.Load(); n != 0 || s.rates.Tenant(x.Caller.TenantID, time.Now()).Memory.Load() != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}

// BenchmarkCharge measures the cost of the memory bound per request.
func BenchmarkCharge(b *testing.B) {
	s := edgeOf(b, admission.Limits{})
	x := &Exchange{Caller: commands.Caller{TenantID: uuid.New()}, Tenant: &domain.Tenant{}}
	b.ReportAllocs()
	for b.Loop() {
		if s.open(x) != nil || !x.charge.Fits(200) || !x.charge.Acquire(201) {
			b.Fatal("refused")
		}
		x.charge.Close()
	}
}
