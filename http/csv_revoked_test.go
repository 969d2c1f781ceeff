package http_test

import (
	"errors"
	"io"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// revokedRows is the number of rows of an answer that the buffers of a connection do not hold.
const revokedRows = 60_000

// TestP9_ALongAnswerEndsWithItsKey: a list, an export and a difference that are read slowly end within a second of the revocation of their
// key or of
// the suspension of their tenant, and do not look complete.
func TestP9_ALongAnswerEndsWithItsKey(t *testing.T) {
	tier.AtSize(t)
	w, a, _ := newRebuildWorld(t)
	tenant := "/api/v1/tenants/" + a.id
	w.accept(a, old("u1", 10))
	export := w.closed(a) + "/export?format="
	w.periodLines(revokedRows)
	w.exec(`INSERT INTO usage_aggregates SELECT generation, partition, tenant_id, feature, period_key,
 ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, n, 1, 1, period_start, period_end, last_event_at
 FROM (SELECT * FROM usage_aggregates WHERE tenant_id = $2 AND feature = 'storage' LIMIT 1) row, generate_series(1, $1) n`, revokedRows,
		a.id)
	diff := "/api/v1/rebuilds/" + w.rebuilt("usage_aggregates", nil) + "/diff?all=true&format=csv"
	revoked := func(path, id string) func() {
		return func() { w.want(204, call{method: "DELETE", path: path + id, key: bootstrap}) }
	}
	own, ownID := w.key(a.id, nil, "usage:read")
	operator, operatorID := w.key("", nil, "admin")
	second, secondID := w.key("", nil, "admin")
	third, thirdID := w.key("", nil, "admin")
	other, _ := w.key(a.id, nil, "usage:read")
	for _, c := range []struct {
		name, key, path string
		end             func()
	}{
		{"list, revoked", own, "/api/v1/usage/aggregates?format=csv", revoked(tenant+"/api-keys/", ownID)},
		{"list, suspended", other, "/api/v1/usage/aggregates?format=csv", func() {
			w.want(200,
				call{"PATCH", tenant, bootstrap, nil, `{"status":"SUSPENDED"}`})
		}},
		{"difference", operator, diff, revoked("/api/v1/operator-keys/", operatorID)},
		{"export as JSON", second, export + "json", revoked("/api/v1/operator-keys/", secondID)},
		{"export as CSV", third, export + "csv", revoked("/api/v1/operator-keys/", thirdID)},
	} {
		_, answer := w.reading(c.key, c.path)
		c.end()
		w.checkCut(c.name, answer)
	}
}

// checkCut reads an answer to its end, a second after its key was refused, and fails if it is whole.
func (w *testService) checkCut(name string, answer *nethttp.Response) {
	w.Helper()
	time.Sleep(time.Second)
	if body, err := io.ReadAll(answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		w.Errorf("%s: a second after its key was refused, the answer ends after %d bytes with %v", name, len(body), err)
	}
}
