package conformance

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/internal/localtest"
)

// keyCases are refusals of the key.
func keyCases() []Case {
	return []Case{
		{Name: "401-new-key", Promise: "after 401 all events are kept and the error is reported; a new key sends them at once",
			Essential: true, run: func(x *trial) {
				newKeySends(x, "mp_live_0000000000000000000000000000000000000000000", "unauthenticated")
			}},
		{Name: "403-new-key", Promise: "after 403 all events are kept and the error is reported; a new key sends them at once",
			run: func(x *trial) {
				newKeySends(x, x.suite.Service.keyOf(x, x.tenant.id, "usage:read"), "forbidden")
			}},
		{Name: "revoked-key", Promise: "a key that is revoked while the client runs loses nothing", run: func(x *trial) {
			c := x.open()
			ids := c.record(usage("before"))
			c.sent()
			old := x.tenant.key
			x.revokeKeys()
			ids = append(ids, c.record(usage("behind"))...)
			c.reported("unauthenticated")
			if c.stats().Waiting != 1 {
				x.Errorf("%+v", c.stats())
			}
			x.tenant.key = x.suite.Service.keyOf(x, x.tenant.id, "usage:write")
			c.must("setKey", object{"key": x.tenant.key}, nil)
			c.sent()
			x.counts(ids...)
			if x.tenant.key == old {
				x.Error("the key was not changed")
			}
		}},
		{Name: "401-again", Promise: "after 401 the same key is tried again after its time", run: func(x *trial) {
			x.proxy.fails(refuses(401, "unauthenticated"), refuses(403, "forbidden"), says(401, "text/html", page))
			c := x.open(object{"keyRetryMs": 200})
			ids := c.record(usage("patient"))
			c.reported("unauthenticated")
			until(x, "it is counted", func() bool { return c.stats().Waiting == 0 })
			x.counts(ids...)
		}},
		{Name: "401-flush", Promise: "flush keeps its deadline while the key is refused", run: func(x *trial) {
			x.proxy.failsAlways(refuses(401, "unauthenticated"))
			c := x.open()
			c.record(usage("kept"))
			if left := c.flush(300 * time.Millisecond); left.Remaining != 1 {
				x.Errorf("%+v", left)
			}
		}},
	}
}

// newKeySends records with a key that is refused, and then sets the right one. The time until a retry is a minute.
func newKeySends(x *trial, wrong, code string) {
	x.Helper()
	c := x.openAt(settings{key: wrong}, object{"keyRetryMs": 3_600_000})
	ids := c.recordN("k", 5)
	c.reported(code)
	if s := c.stats(); s.Waiting != 5 || s.Rejected+s.Damaged > 0 {
		x.Errorf("%+v", s)
	}
	tried := len(x.proxy.batches())
	c.must("setKey", object{"key": x.tenant.key}, nil)
	c.sent()
	x.counts(ids...)
	if tried > 2 {
		x.Errorf("the refused key was tried %d times", tried)
	}
}

// revokeKeys revokes all keys of the tenant, and waits until the service refuses them.
func (x *trial) revokeKeys() {
	x.Helper()
	var page struct{ Data []struct{ ID string } }
	x.suite.Service.ask(x, http.MethodGet, "/tenants/"+x.tenant.id+"/api-keys", nil, &page)
	for _, k := range page.Data {
		x.suite.Service.ask(x, http.MethodDelete, "/tenants/"+x.tenant.id+"/api-keys/"+k.ID, nil, nil)
	}
	revoked := Service{x.suite.Service.URL, x.tenant.key}
	until(x, "the key is refused", func() bool {
		status, _ := revoked.try(x, http.MethodGet, "/entitlements", nil)
		return status == http.StatusUnauthorized
	})
}

func certificateCases() []Case {
	return []Case{
		{Name: "certificate-changed", Promise: "a new certificate of the same authority is accepted, without a restart",
			run: func(x *trial) {
				ca := localtest.NewCA(x, "the authority")
				c := x.openTLS(ca, ca)
				ids := c.record(usage("first"))
				c.sent()
				x.proxy.present(signedBy(x, ca))
				ids = append(ids, c.record(usage("second"))...)
				c.sent()
				x.counts(ids...)
			}},
		{Name: "certificate-untrusted", Promise: "a server whose certificate is not trusted gets no request; all events are kept " +
			"until it is", run: func(x *trial) {
			ca, other := localtest.NewCA(x, "the authority"), localtest.NewCA(x, "another authority")
			c := x.openTLS(ca, other)
			ids := c.record(usage("first"), usage("second"))
			c.reported("unavailable")
			if n, s := len(x.proxy.seen()), c.stats(); n > 0 || s.Waiting != 2 {
				x.Errorf("%d requests, %+v", n, s)
			}
			x.proxy.present(signedBy(x, ca))
			c.sent()
			x.counts(ids...)
		}},
		{Name: "certificate-of-system", Promise: "without certificates of its own a client trusts those of the system only",
			run: func(x *trial) {
				ca := localtest.NewCA(x, "the authority")
				x.proxy = newProxy(x, x.suite.Service.URL, signedBy(x, ca))
				c := x.open()
				c.record(usage("kept"))
				c.reported("unavailable")
				if n := len(x.proxy.seen()); n > 0 {
					x.Errorf("%d requests", n)
				}
			}},
	}
}

// openTLS opens a client that trusts an authority, with a proxy whose certificate is signed by another.
func (x *trial) openTLS(trusted, signs *localtest.CA) *client {
	x.Helper()
	x.proxy = newProxy(x, x.suite.Service.URL, signedBy(x, signs))
	return x.open(object{"ca": localtest.File(x, "ca.pem", trusted.PEM)})
}

func signedBy(x *trial, ca *localtest.CA) *tls.Certificate {
	x.Helper()
	made := ca.Sign(x, "service", time.Hour, "127.0.0.1")
	cert, err := tls.X509KeyPair([]byte(made.Cert), []byte(made.Key))
	if err != nil {
		x.Fatal(err)
	}
	return &cert
}
