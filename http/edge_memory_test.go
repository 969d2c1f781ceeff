package http

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

func edgeOf(t testing.TB, l Limits) *edge {
	t.Helper()
	e, err := newEdge(edgeConfig{limits: l})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAChargeGivesBackWhatItTook(t *testing.T) {
	s := edgeOf(t, Limits{Memory: 200_000, EventsBurst: 1})
	x := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	y := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	if s.open(x) != nil || x.charge.acquire(100_000) || !x.charge.acquire(40_000) || x.charge.fits(40_000) || !x.charge.fits(20_000) {
		t.Error("a tenant has not its half, or more than that")
	}
	if s.open(y) != nil || !y.charge.acquire(66_000) {
		t.Error("another tenant has not its own half")
	}
	if p := s.open(&exchange{}); p == nil || p.Code != "overloaded" || p.GetHeaders().Get("Retry-After") == "" {
		t.Errorf("more than all is taken: %v", p)
	}
	x.charge.close()
	y.charge.close()
	if n := s.memory.load(); n != 0 || s.rates.of(x.caller.TenantID, time.Now()).memory.load() != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}

// BenchmarkCharge measures the cost of the memory bound per request.
func BenchmarkCharge(b *testing.B) {
	s := edgeOf(b, Limits{})
	x := &exchange{caller: commands.Caller{TenantID: uuid.New()}, tenant: &domain.Tenant{}}
	b.ReportAllocs()
	for b.Loop() {
		if s.open(x) != nil || !x.charge.fits(200) || !x.charge.acquire(201) {
			b.Fatal("refused")
		}
		x.charge.close()
	}
}
