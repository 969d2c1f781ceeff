package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// A read that waits for the position of a write includes the write, in the aggregates
// and in the entitlements.
func TestReadYourWrite(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	x := tenants[0]
	// Load of another tenant keeps the pipe busy.
	l := w.startLoad(tenants[1:], 1, busyTraffic(), func(int) string { return i.url() })
	used := int64(0)
	for n := range 25 {
		batch := events(fmt.Sprint("w", n), 3, "calls")
		for _, e := range batch {
			used += e.Amount
		}
		verdicts := w.ingest(i, x, "accepted", batch...)
		at := verdicts[len(verdicts)-1].Position
		var figures struct {
			Data []struct {
				Amount     int64
				EventCount int
			}
			AsOfPosition string
		}
		w.ask(x.key, http.MethodGet, i, "/api/v1/usage/aggregates?feature=calls&minPosition="+at, nil, &figures, http.StatusOK, "Prefer", "wait=30")
		sum, count := int64(0), 0
		for _, d := range figures.Data {
			sum, count = sum+d.Amount, count+d.EventCount
		}
		if sum != used || count != 3*(n+1) {
			t.Errorf("aggregates at %s: %d of %d events, want %d of %d", at, sum, count, used, 3*(n+1))
		}
		var check struct {
			Used, Remaining int64
			Allowed         bool
		}
		w.ask(x.key, http.MethodGet, i, "/api/v1/entitlements/calls/check?amount=1&minPosition="+at, nil, &check, http.StatusOK, "Prefer", "wait=30")
		if check.Used != used || check.Remaining != 1000-used || !check.Allowed {
			t.Errorf("entitlement at %s: %+v, want %d used", at, check, used)
		}
	}
	l.stop()
	w.checkPositionsRefused(i, x)
	w.finish()
}

// checkPositionsRefused checks that a position beyond the head, or of another partition, is refused.
func (w *deployment) checkPositionsRefused(at *instance, x *tenant) {
	w.t.Helper()
	partition, head := 0, int64(0)
	if err := w.sql.QueryRow(w.t.Context(), `SELECT h.partition, h.position FROM log_heads h WHERE h.partition = (SELECT partition FROM event_log_rows WHERE tenant_id = $1 LIMIT 1)`, x.id).Scan(&partition, &head); err != nil {
		w.t.Fatal(err)
	}
	for _, position := range []string{
		strconv.Itoa(partition) + "-" + strconv.FormatInt(head+1_000_000, 10),
		strconv.Itoa((partition+1)%32) + "-1",
	} {
		status, body, err := w.callOnceServed(context.WithoutCancel(w.t.Context()), x.key, http.MethodGet, at.url()+"/api/v1/usage/aggregates?minPosition="+position, nil)
		if err != nil || status != http.StatusBadRequest {
			w.t.Errorf("minPosition %s: %d %v %s", position, status, err, body)
		}
	}
}
