package http_test

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// webhookOf makes a webhook of an account with a delivery.
func (w *testService) webhookOf(p *account) (webhook, delivery string) {
	w.Helper()
	webhook, _ = w.want(201, call{"POST", "/api/v1/tenants/" + p.id + "/webhooks", p.key, nil,
		`{"url":"https://example.com/hooks","events":["period.closed"]}`})["id"].(string)
	delivery, _ = w.want(202, call{"POST", "/api/v1/tenants/" + p.id + "/webhooks/" + webhook + "/test", p.key, nil, nil})["id"].(string)
	return webhook, delivery
}

// thresholdOf makes a threshold of an account.
func (w *testService) thresholdOf(p *account) (id string) {
	w.Helper()
	id, _ = w.want(201, call{"POST", "/api/v1/tenants/" + p.id + "/thresholds", p.key, nil, `{"feature":"api_calls","percent":80}`})["id"].(string)
	return id
}

// letter records usage that the validator rejects later, because its feature was in the
// subscription only at ingest. The result is a dead letter of stage VALIDATION.
func (w *testService) letter(p *account) {
	w.Helper()
	tenant, payload := uuid.MustParse(p.id), `{"amount":1,"eventId":"rejected-of-A","feature":"gone","timestamp":"`+now()+
		`","type":"usage"}`
	w.must(pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := w.log.AppendTx(w.Context(), tx, []events.Pending{{EventID: newID(), Subject: events.UsageRecorded, TenantID: tenant,
			DedupeKey: events.KeyUsage("rejected-of-A"), Actor: events.Actor{Type: "system", ID: "test"},
			Residency: events.ResidencyUnspecified, OccurredAt: time.Now(),
			Payload: json.RawMessage(payload), Counts: events.Counts{Accepted: 1}}})
		return err
	}))
	w.fold()
	w.must(w.pool.QueryRow(w.Context(), `SELECT id FROM dead_letter_events WHERE tenant_id = $1 AND stage = 'VALIDATION'`, tenant).
		Scan(&p.letterID))
}
