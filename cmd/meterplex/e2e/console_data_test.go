package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/must"
)

// consoleWorld is an installation whose pages hold data, and hostile text.
type consoleWorld struct {
	*deployment
	at     *instance
	tenant *tenant
	letter string // a dead letter
	ready  string // a rebuild with a difference
}

// canary is text that would run, were it not escaped.
const canary = `<script>window.canary=1</script>"><img src=x onerror="window.canary=1">`

func newConsoleWorld(t *testing.T) *consoleWorld {
	t.Helper()
	w := &consoleWorld{deployment: newDeployment(t)}
	w.at = w.serve("")
	w.catalogue(w.at)
	w.tenant = w.createTenants(w.at, 1)[0]
	w.put("/prices/calls", object{"name": "Calls", "currency": "EUR", "model": "per_unit", "microUnits": 300})
	w.patch("/tenants/"+w.tenant.id, object{"name": "Acme " + canary, "metadata": object{`"><img src=x onerror="window.canary=1">`: canary}})
	w.post("/tenants/"+w.tenant.id+"/webhooks", object{"url": "https://example.com/meterplex", "events": []string{"threshold.crossed"}}, nil)
	w.post("/tenants/"+w.tenant.id+"/thresholds", object{"feature": "calls", "percent": 90}, nil)
	w.post("/operator-keys", object{"name": "audit", "scopes": []string{"audit"}}, nil)
	w.ingest(w.at, w.tenant, "accepted", spread(40)...)
	w.conflict()
	w.push(w.tenant, "FAILED")
	w.saga(w.tenant)
	w.ask(w.keyOf(w.at, w.tenant, "entitlements:reserve"), http.MethodPost, w.at, "/api/v1/entitlements/calls/reservations",
		object{"reservationId": "job-7", "amount": 5, "ttlSeconds": 3600}, nil, http.StatusCreated)
	w.drain()
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/replays", object{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z", "reason": "the search index lost events"}, nil, http.StatusAccepted)
	within(t, "the conflict is a dead letter", func(context.Context) (bool, string) {
		var page struct{ Data []struct{ ID string } }
		w.ask(w.operator, http.MethodGet, w.at, "/api/v1/dead-letters?tenantId="+w.tenant.id, nil, &page, http.StatusOK)
		if len(page.Data) > 0 {
			w.letter = page.Data[0].ID
		}
		return w.letter != "", fmt.Sprint(page)
	})
	w.differ()
	var started rebuild
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1/projections/usage_aggregates/rebuilds", object{"reason": "a fix of the fold"}, &started, http.StatusAccepted)
	w.ready = started.ID
	w.deployment.ready(w.at, w.ready)
	return w
}

// spread returns usage of the last half hour, minute by minute.
func spread(n int) []event {
	now := time.Now().UTC().Truncate(time.Minute)
	batch := events("event", n, "api_calls")
	for i := range batch {
		batch[i].Timestamp = now.Add(-time.Duration(i) * time.Minute)
	}
	return batch
}

// conflict sends an event again, with another amount.
func (w *consoleWorld) conflict() {
	w.t.Helper()
	other := spread(1)
	other[0].Amount += 93
	var answer object
	w.ask(w.tenant.key, http.MethodPost, w.at, "/api/v1/usage/events", object{"events": other}, &answer, http.StatusAccepted)
}

// differ makes one live figure wrong, so that a rebuild has a difference.
func (w *consoleWorld) differ() {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(), `UPDATE usage_aggregates SET amount = amount + 7 WHERE tenant_id = $1 AND feature = 'api_calls'`, w.tenant.id); err != nil {
		w.t.Fatal(err)
	}
}

func (w *consoleWorld) put(path string, in any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPut, w.at, "/api/v1"+path, in, nil, http.StatusCreated)
}

func (w *consoleWorld) patch(path string, in any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPatch, w.at, "/api/v1"+path, in, nil, http.StatusOK)
}

func (w *consoleWorld) post(path string, in, out any) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPost, w.at, "/api/v1"+path, in, out, http.StatusCreated)
}

// usagePage is the address of the tenant's usage.
func (w *consoleWorld) usagePage() string {
	return "/console/usage?" + url.Values{"tenantId": {w.tenant.id}, "feature": {"api_calls"}}.Encode()
}

// lettersOf appends usage of a feature that no plan has to the log, as a release without a check would: each event becomes a dead letter. The clock of its producer is
// a minute ahead, so that a plan that is applied afterwards is in force at the time of the usage.
func (w *consoleWorld) lettersOf(x *tenant, feature string, n int) {
	w.t.Helper()
	partition := partitionOf(x.id)
	err := pgx.BeginFunc(w.t.Context(), w.sql, func(tx pgx.Tx) error {
		for i := range n {
			var at time.Time
			if err := tx.QueryRow(w.t.Context(), `UPDATE log_heads SET position = position + 1, topic_positions[1] = position + 1, accepted = accepted + 1,
 recorded_at = greatest(recorded_at, now()) WHERE partition = $1 RETURNING recorded_at`, partition).Scan(&at); err != nil {
				return err
			}
			used := at.UTC().Add(time.Minute)
			body := fmt.Sprintf(`{"amount":1,"eventId":"%s-%d","feature":%q,"timestamp":%q,"type":"usage"}`, feature, i, feature, used.Format("2006-01-02T15:04:05.999999Z"))
			if _, err := tx.Exec(w.t.Context(), `INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, correlation_id, epoch, origin, partition, topic, subject, dedupe_key, body)
 SELECT h.position, coalesce((SELECT max(position) FROM event_log_rows l WHERE l.partition = h.partition AND topic = 1), 0), h.recorded_at, $5, gen_random_uuid(), $1, gen_random_uuid(), h.epoch,
 (SELECT origin FROM event_log_rows WHERE subject = 1 LIMIT 1), h.partition, 1, 1, $2, $3 FROM log_heads h WHERE partition = $4`,
				x.id, fmt.Sprintf("u/%s-%d", feature, i), body, partition, used); err != nil {
				return err
			}
		}
		return nil
	})
	must.OK(w.t, err)
}

// push stores a push in a state: no provider is connected. It returns the push's id.
func (w *consoleWorld) push(x *tenant, state string) (id string) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier, counted_at, state, attempts, stored_at,
 first_attempt_at, attempted_at, unknown_since, last_code, last_error)
 SELECT id, $1::uuid, 'api_calls', to_char(now() - interval '1 month', 'YYYY-MM'), 1, (SELECT count(*) FROM pushes), 12, 'stripe', 'cus_NffrFeUfNV2Hib', 'api_calls', id::text, id::text, now(), $2::text, 1, now(), now(), now(),
 CASE WHEN $2 = 'UNKNOWN' THEN now() END, 'resource_missing', 'No such customer' FROM gen_random_uuid() id RETURNING id::text`, x.id, state).Scan(&id)
	must.OK(w.t, err)
	return id
}

// saga stores a saga that waits, and that no runner reaches.
func (w *consoleWorld) saga(x *tenant) {
	w.t.Helper()
	if _, err := w.sql.Exec(w.t.Context(), `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, missing, created_at)
 VALUES (gen_random_uuid(), 'period_close', $1, '2026-01/1', 'wait', 'RUNNING', now() + interval '1 year', now() + interval '1 year', '{dead_letters}', now())`, x.id); err != nil {
		w.t.Fatal(err)
	}
}

// abandonReady drops the rebuild with a difference, so that another one of its figures can start.
func (w *consoleWorld) abandonReady() {
	w.t.Helper()
	if w.rebuild(w.at, w.ready).State != "ABANDONED" {
		w.ask(w.operator, http.MethodPost, w.at, "/api/v1/rebuilds/"+w.ready+"/abandon", object{"reason": "another rebuild"}, nil, http.StatusAccepted)
	}
}
