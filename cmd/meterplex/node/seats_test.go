package node

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/query"
)

// The reads of the write side's tables by a key of a tenant take the seats of that tenant.
func TestP9_ATenantsReadsTakeNoSeatOfOperators(t *testing.T) {
	n := &Node{pools: pools{seats: query.NewSeats(readConns, query.ReservedSeats)}}
	seat := n.catalogue().Seat
	tenant := uuid.New()
	ofTenant := edge.WithExchange(t.Context(), &edge.Exchange{Caller: commands.Caller{TenantID: tenant},
		Tenant: &domain.Tenant{ID: tenant}})
	ofOperator := edge.WithExchange(t.Context(), &edge.Exchange{})
	for range readConns / 4 {
		for name, ctx := range map[string]context.Context{"a tenant": ofTenant, "an operator": ofOperator} {
			_, leave, err := seat(ctx)
			if err != nil {
				t.Fatalf("a read of %s: %v", name, err)
			}
			defer leave()
		}
	}
	if _, _, err := seat(ofTenant); err == nil {
		t.Error("a tenant has more than its seats")
	}
}
