package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// hookReceiver is the endpoints of webhooks, one for each tenant. It verifies each request by itself.
type hookReceiver struct {
	t    testing.TB
	http *httptest.Server
	calm *atomic.Bool

	mu       sync.Mutex
	ids      map[string]string            // webhooks by tenant
	secrets  map[string][]byte            // by tenant
	bodies   map[string]map[string]string // by tenant and webhook-id
	requests int
	refused  int
}

func newHookReceiver(t testing.TB, calm *atomic.Bool) *hookReceiver {
	r := &hookReceiver{t: t, calm: calm, ids: map[string]string{}, secrets: map[string][]byte{}, bodies: map[string]map[string]string{}}
	r.http = httptest.NewServer(r)
	t.Cleanup(func() { r.http.CloseClientConnections(); r.http.Close() })
	return r
}

func (r *hookReceiver) endpoint(tenant string) string { return r.http.URL + "/" + tenant }

// know notes the webhook of a tenant. Requests before are answered 503.
func (r *hookReceiver) know(tenant, id, secret string) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) != 32 {
		r.t.Errorf("the secret of a webhook is no base64 of 32 bytes: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[tenant], r.secrets[tenant], r.bodies[tenant] = id, key, map[string]string{}
}

// ServeHTTP verifies a request. While there are faults it loses a sixth of the answers after it has the event, and refuses a sixth.
func (r *hookReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the instance was killed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	tenant := strings.TrimPrefix(req.URL.Path, "/")
	if fault := r.requests % 6; r.secrets[tenant] == nil || !r.calm.Load() && fault == 0 {
		r.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	} else if !r.calm.Load() && fault == 3 {
		r.refused++
		w.WriteHeader(http.StatusInternalServerError) // behind the work
	}
	r.verify(tenant, req.Header, body)
}

func (r *hookReceiver) verify(tenant string, h http.Header, body []byte) {
	id, at := h.Get("webhook-id"), h.Get("webhook-timestamp")
	mac := hmac.New(sha256.New, r.secrets[tenant])
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); h.Get("webhook-signature") != want {
		r.t.Errorf("the event %s for %s is signed %q, want %q", id, tenant, h.Get("webhook-signature"), want)
	}
	var sent struct{ ID, TenantID, Type string }
	if err := json.Unmarshal(body, &sent); err != nil || sent.ID != id || sent.TenantID != tenant {
		r.t.Errorf("the endpoint of %s got the event %s: %v %s", tenant, id, err, body)
	}
	if was := r.bodies[tenant][id]; was != "" && was != string(body) {
		r.t.Errorf("the event %s was sent as %s and as %s", id, was, body)
	}
	r.bodies[tenant][id] = string(body)
}

// settleHooks waits until all deliveries have ended, and compares them with the log.
func (k *endingsLoad) settleHooks() string {
	x, state := k.x, ""
	if !x.becomesTrue(endingTime, func(ctx context.Context) bool {
		k.replay(ctx)
		var waiting, behind int64
		err := x.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id WHERE d.state = 'PENDING' OR d.state = 'FAILED' AND w.status = 'ENABLED'), (SELECT count(*) FROM webhooks w JOIN log_heads h USING (partition)
 WHERE w.status = 'ENABLED' AND w.cursor < greatest(h.topic_positions[7], h.topic_positions[8]))`).Scan(&waiting, &behind)
		state = fmt.Sprintf("%d deliveries are open, %d webhooks are behind: %v", waiting, behind, err)
		x.sleep(time.Second)
		return err == nil && waiting+behind == 0
	}) {
		x.t.Errorf("deliveries of webhooks do not end: %s", state)
	}
	received := 0
	for tenant, id := range k.hooks.ids {
		received += k.checkReceived(tenant, id)
	}
	return fmt.Sprintf("%d events of %d webhooks, %d requests of which %d were refused", received, len(k.hooks.ids), k.hooks.requests, k.hooks.refused)
}

// replay sends deliveries again that wait for minutes.
func (k *endingsLoad) replay(ctx context.Context) {
	for tenant, id := range k.hooks.ids {
		for _, state := range []string{"PENDING", "FAILED"} {
			var page struct {
				Data []struct {
					ID       string
					Attempts int
				}
			}
			if status, _ := k.x.attempt(ctx, k.x.operator, http.MethodGet, "/api/v1/tenants/"+tenant+"/webhooks/"+id+"/deliveries?limit=200&state="+state, nil, &page); status != http.StatusOK {
				continue
			}
			for _, d := range page.Data {
				if d.Attempts > 0 {
					_, _ = k.x.attempt(ctx, k.x.operator, http.MethodPost, "/api/v1/deliveries/"+d.ID+"/replay", object{}, nil, "Idempotency-Key", uuid.NewString())
				}
			}
		}
	}
}

// selectedSQL returns the events of the log that a webhook selects, and if their deliveries failed: those that wait when their tenant is archived.
const selectedSQL = `SELECT l.event_id::text, EXISTS (SELECT FROM webhook_deliveries d WHERE d.event_id = l.event_id AND d.state = 'FAILED') FROM event_log_rows l WHERE l.tenant_id = $1 AND (l.subject IN (72, 77) OR EXISTS (SELECT FROM adjustments a WHERE a.id = l.event_id AND (a.decided IS NULL OR a.decided > a.position)))
 AND l.position > (SELECT min(position) FROM event_log_rows c WHERE c.tenant_id = $1 AND c.subject = 67)`

func (k *endingsLoad) checkReceived(tenant, id string) int {
	rows, err := k.x.sql.Query(k.x.t.Context(), selectedSQL, tenant)
	if err != nil {
		k.x.t.Fatal(err)
	}
	defer rows.Close()
	k.hooks.mu.Lock()
	defer k.hooks.mu.Unlock()
	selected := map[string]bool{}
	for rows.Next() {
		var event string
		var failed bool
		if err := rows.Scan(&event, &failed); err != nil {
			k.x.t.Fatal(err)
		}
		if selected[event] = true; k.hooks.bodies[tenant][event] == "" && !(failed && tenant == k.ended.id) {
			k.x.t.Errorf("the endpoint of %s did not get the event %s", tenant, event)
		}
	}
	for event := range k.hooks.bodies[tenant] {
		if !selected[event] {
			k.x.t.Errorf("the endpoint of %s got %s, which it does not select", tenant, event)
		}
	}
	return len(selected)
}
