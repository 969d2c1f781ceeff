package e2e

import "testing"

// With PostgreSQL as the pipe, the same promises hold through the same kills.
func TestPostgresPipe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pipe = "postgres"
	a, b := w.serve(""), w.serve("")
	w.catalogue(a)
	tenants := w.join(a, 2)
	w.known(b, tenants)
	l := w.drive(tenants, 2, usual(), func(n int) string {
		if url := b.url(); n%2 == 1 && url != "" {
			return url
		}
		return a.url()
	})
	l.awaitMore(300)
	l.killUnderWay(b)
	l.awaitMore(300)
	b.start()
	l.killUnderWay(a)
	a.start()
	l.awaitMore(300)
	l.stop()
	w.finish()
}
