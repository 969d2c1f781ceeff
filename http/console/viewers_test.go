package console

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// TestP9_NoTenantTakesTheViewersOfOthers: the streams of one tenant have a bound, and those of all tenants leave some to operators.
func TestP9_NoTenantTakesTheViewersOfOthers(t *testing.T) {
	w := newWatchedConsole(t)
	cookies := make([]string, 13)
	for n := range cookies {
		var hash [32]byte
		cookies[n], hash = w.signIn(string(rune('a' + n)))
		w.keys.setTenant(hash, &domain.Tenant{ID: uuid.New(), Status: domain.TenantActive})
	}
	operator, _ := w.signIn("operator")
	page := w.pages[len(w.pages)-1]
	page.who, page.scopes = either, slices.Concat(commands.TenantScopes(), commands.OperatorScopes())
	for _, r := range w.Routes() {
		w.routes[r.Name()] = r.Handler
	}
	refused := func(name, cookie string) {
		t.Helper()
		if got := w.get(livePath, cookie); got.Code != http.StatusServiceUnavailable {
			t.Errorf("%s gets %d", name, got.Code)
		}
	}
	ended := w.view(cookies[0], maxTenantViewers)
	refused("the tenant's next viewer", cookies[0])
	others := make([]<-chan struct{}, len(cookies))
	for n := 1; n < len(cookies)-1; n++ { // 12 × 16 are all that tenants may have
		others[n] = w.view(cookies[n], maxTenantViewers)
	}
	refused("a tenant beside 12 others", cookies[12])
	operators := w.view(operator, operatorViewers)
	refused("an operator beside all", operator)

	w.open.end()
	w.all(ended, maxTenantViewers, "without its session")
	for n := 1; n < len(cookies)-1; n++ {
		w.all(others[n], maxTenantViewers, "without its session")
	}
	w.all(operators, operatorViewers, "without its session")
	for end := time.Now().Add(time.Minute); w.viewers.open() != 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if n := w.viewers.open(); n != 0 || len(w.viewers.of) != 0 {
		t.Errorf("%d viewers are left, of %d tenants", n, len(w.viewers.of))
	}
}
