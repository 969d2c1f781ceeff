package e2e

import (
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// With PostgreSQL as the pipe, the same promises hold through the same kills.
func TestPostgresPipe(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	a, b := w.serve(""), w.serve("")
	w.catalogue(a)
	tenants := w.createTenants(a, 2)
	w.awaitKeys(b, tenants)
	l := w.startLoad(tenants, 2, busyTraffic(), func(n int) string {
		if url := b.url(); n%2 == 1 && url != "" {
			return url
		}
		return a.url()
	})
	l.awaitMore(300)
	l.killDuringRequest(b)
	l.awaitMore(300)
	b.start()
	l.killDuringRequest(a)
	a.start()
	l.awaitMore(300)
	l.stop()
	w.finish()
}
