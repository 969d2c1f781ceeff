package console

import (
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/problem"
)

// Bounds of the open streams of an instance.
const (
	maxViewers       = 256
	operatorViewers  = 64 // of maxViewers: only operators get them, so that tenants do not take all
	maxTenantViewers = 16 // of one tenant
)

// viewers counts open streams.
type viewers struct {
	mu  sync.Mutex
	all int
	of  map[uuid.UUID]int // by tenant, without 0
}

// enter counts a stream of a tenant, or of an operator if tenant is nil. leave must be called once.
func (n *viewers) enter(tenant *domain.Tenant) (leave func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if tenant == nil {
		if n.all >= maxViewers {
			return nil, problem.New("overloaded", fmt.Sprintf("%d live pages are open on this instance. Reload this page later", maxViewers))
		}
		n.all++
		return func() { n.leave(uuid.Nil) }, nil
	}
	id := tenant.ID
	switch {
	case n.of[id] >= maxTenantViewers:
		return nil, problem.New("overloaded", fmt.Sprintf("%d live pages of the tenant are open on this instance. Close one of them, then reload this page", maxTenantViewers))
	case n.all >= maxViewers-operatorViewers:
		return nil, problem.New("overloaded", fmt.Sprintf("%d live pages are open on this instance, and the others are for operators. Reload this page later", n.all))
	}
	if n.of == nil {
		n.of = map[uuid.UUID]int{}
	}
	n.all++
	n.of[id]++
	return func() { n.leave(id) }, nil
}

func (n *viewers) leave(tenant uuid.UUID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all--
	if n.of[tenant] > 1 {
		n.of[tenant]--
	} else {
		delete(n.of, tenant)
	}
}

// open returns the number of open streams.
func (n *viewers) open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all
}
