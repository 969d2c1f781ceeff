package edge

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

func edgeOf(t testing.TB, l admission.Limits) *Edge {
	t.Helper()
	e, err := New(Config{Limits: l})
	must.OK(t, err)
	return e
}

// callerOf is an exchange of an ingest request of a new tenant.
func callerOf() *Exchange {
	return &Exchange{route: &auth.Route{Ingest: true}, Caller: commands.Caller{TenantID: uuid.New()}, Tenant: &domain.Tenant{}}
}

func TestAChargeReleasesItsMemory(t *testing.T) {
	s := edgeOf(t, admission.Limits{IngestMemory: 400_000, EventsBurst: 1})
	x, y := callerOf(), callerOf()
	if s.open(x) != nil || x.charge.Acquire(170_000) || !x.charge.Acquire(140_000) || x.charge.Fits(40_000) || !x.charge.Fits(20_000) {
		t.Error("a tenant has not its half, or more than that")
	}
	if s.open(y) != nil || y.charge.Acquire(90_000) || !y.charge.Acquire(80_000) {
		t.Error("another tenant has not half of the rest, or more than that")
	}
	if p := s.open(&Exchange{route: x.route, Caller: x.Caller, Tenant: x.Tenant}); p == nil || p.Code != "overloaded" ||
		p.GetHeaders().Get("Retry-After") == "" {
		t.Errorf("more than the bound is accepted: %v", p)
	}
	x.release()
	y.release()
	holds := &s.rates.Tenant(x.Caller.TenantID, time.Now()).Ingest
	if s.ingest.Memory.Load() != 0 || s.ingest.Slots.Load() != 0 || holds.Memory.Load() != 0 || holds.Slots.Load() != 0 {
		t.Error("something is held by nobody")
	}
}

// BenchmarkCharge measures the cost of the memory bound per request.
func BenchmarkCharge(b *testing.B) {
	s, x := edgeOf(b, admission.Limits{}), callerOf()
	b.ReportAllocs()
	for b.Loop() {
		if s.open(x) != nil || !x.charge.Fits(200) || !x.charge.Acquire(201) {
			b.Fatal("refused")
		}
		x.release()
	}
}
