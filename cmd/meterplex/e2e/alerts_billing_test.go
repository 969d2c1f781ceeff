package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/must"
)

// billingFaults breaks the billing provider, the close of periods, and the endpoints of webhooks.
type billingFaults struct {
	*alertsTest
	stripe *stripetest.Server
}

// month is the present month, as a period.
func month() string { return time.Now().UTC().Format("2006-01") }

// billed makes a tenant with usage and a customer.
func (w *billingFaults) billed(customer string) *tenant {
	w.t.Helper()
	x := w.createTenants(w.front, 1)[0]
	if customer != "" {
		w.ask(w.operator, http.MethodPut, w.front, "/api/v1/tenants/"+x.id+"/billing", object{"provider": "stripe", "customer": customer}, nil, http.StatusOK)
	}
	w.ingest(w.front, x, "accepted", events("billed", 3, "api_calls")...)
	return x
}

// closes requests the close of a tenant's month.
func (w *billingFaults) closes(x *tenant, despite ...string) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPost, w.front, "/api/v1/tenants/"+x.id+"/periods/"+month()+"/close", object{"reason": "a test", "early": true, "despite": append([]string{}, despite...)}, nil, http.StatusAccepted)
}

// known returns the words of a runbook about a tenant. ID is that of its saga of a kind, of its push, or of the tenant.
func (w *billingFaults) known(x *tenant, id string) func() map[string]string {
	return func() map[string]string {
		words := map[string]string{"ID": x.id, "TENANT": x.id, "2026-05": month()}
		for word, sql := range map[string]string{"PUSH": `SELECT coalesce(min(id::text), '') FROM pushes WHERE tenant_id = $1`, "SAGA": `SELECT coalesce(min(id::text), '') FROM sagas WHERE tenant_id = $1 AND kind = 'period_close'`,
			"WEBHOOK": `SELECT coalesce(min(id::text), '') FROM webhooks WHERE tenant_id = $1`} {
			var found string
			must.OK(w.t, w.sql.QueryRow(w.t.Context(), sql, x.id).Scan(&found))
			if words[word] = found; word == id {
				words["ID"] = found
			}
		}
		return words
	}
}

// soon lets attempts begin now that wait, as the clock does.
func (w *billingFaults) soon(x *tenant) {
	w.run(`UPDATE pushes SET next_at = now() WHERE next_at IS NOT NULL AND tenant_id = '`+x.id+`'`, `UPDATE sagas SET next_at = now() WHERE ended_at IS NULL AND lease IS NULL AND tenant_id = '`+x.id+`'`)
}

func (w *billingFaults) happenAll() {
	w.keyFaults()
	w.unknownFaults()
	w.totalFaults()
	w.periodFaults() // last: they wait for the faults in usage_aggregates of another group
}

// periodFaults lets a close drift, a push be refused, and an endpoint be gone.
func (w *billingFaults) periodFaults() {
	refused, drifts := w.billed("cus_missing"), w.billed("")
	for _, x := range []*tenant{refused, drifts} {
		w.awaitApplied(x, 3)
	}
	gone := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) { a.WriteHeader(http.StatusGone) }))
	w.t.Cleanup(gone.Close)
	w.fed.aggregates.Lock()
	defer w.fed.aggregates.Unlock()
	w.happen(
		&brokenPart{alert: "MeterplexPushFailed", shown: above(`meterplex_billing_pushes_open{state="FAILED"}`, 0), known: w.known(refused, "PUSH"),
			breaks:   func() { w.closes(refused) },
			mends:    func() { w.stripe.AddCustomer("cus_missing") },
			remedies: []string{"meterplex pushes retry ID"}},
		&brokenPart{alert: "MeterplexPeriodDrift", shown: above(`meterplex_saga_open{state="DRIFT"}`, 0), known: w.known(drifts, ""),
			breaks: func() {
				w.run(`UPDATE usage_aggregates SET amount = amount + 1 WHERE tenant_id = '` + drifts.id + `'`)
				w.closes(drifts)
			},
			remedies: []string{"meterplex projections verify usage_aggregates --tenant-id ID --repair", "meterplex sagas retry SAGA"}},
		&brokenPart{alert: "MeterplexWebhookDisabled", labels: `reason="gone"`, shown: grown(`meterplex_webhooks_disabled_total{reason="gone"}`), over: always, known: w.known(refused, ""),
			breaks: func() {
				var hook struct{ ID string }
				w.ask(w.operator, http.MethodPost, w.front, "/api/v1/tenants/"+refused.id+"/webhooks", object{"url": gone.URL, "events": []string{"period.closed"}}, &hook, http.StatusCreated)
				w.ask(w.operator, http.MethodPost, w.front, "/api/v1/tenants/"+refused.id+"/webhooks/"+hook.ID+"/test", object{}, nil, http.StatusAccepted)
			}},
	)
}

// keyFaults lets the provider refuse the key, and time pass.
func (w *billingFaults) keyFaults() {
	w.stripe.AddCustomer("cus_key")
	x := w.billed("cus_key")
	w.awaitApplied(x, 3)
	waited := func(days string) {
		w.run(`UPDATE pushes SET stored_at = now() - interval '` + days + `' WHERE tenant_id = '` + x.id + `'`)
	}
	w.happen(
		&brokenPart{alert: "MeterplexBillingKeyRefused", shown: grown(`meterplex_billing_push_attempts_total{outcome="key_refused"}`), over: always, known: w.known(x, "PUSH"),
			breaks: func() {
				w.stripe.Draw(func() stripetest.Fault { return stripetest.Unauthorized })
				w.closes(x)
			}},
		&brokenPart{alert: "MeterplexPushLate", shown: above("meterplex_billing_oldest_open_push_seconds", 86400), known: w.known(x, "PUSH"),
			breaks: func() {
				within(w.t, "the push waits", func(context.Context) (bool, string) {
					return w.count(`SELECT count(*) FROM pushes WHERE tenant_id = $1 AND last_code = 'provider_key_refused'`, x.id) == 1, ""
				})
				waited("25 hours")
			},
			mends: func() {
				w.stripe.Draw(nil)
				within(w.t, "the push is delivered", func(context.Context) (bool, string) {
					w.soon(x) // each time: an attempt that was refused as the provider was mended sets a later one
					return w.count(`SELECT count(*) FROM pushes WHERE tenant_id = $1 AND state = 'DELIVERED'`, x.id) == 1, ""
				})
			}},
	)
}

// unknownFaults loses the answers of the provider.
func (w *billingFaults) unknownFaults() {
	w.stripe.AddCustomer("cus_unknown")
	x := w.billed("cus_unknown")
	w.awaitApplied(x, 3)
	w.happen(&brokenPart{alert: "MeterplexPushUnknown", shown: above(`meterplex_billing_pushes_open{state="UNKNOWN"}`, 0), known: w.known(x, "PUSH"),
		breaks: func() {
			w.stripe.Draw(func() stripetest.Fault { return stripetest.Lose })
			w.closes(x)
		},
		mends:    func() { w.stripe.Draw(nil) },
		remedies: []string{"meterplex pushes resolve ID --no-delivered"}})
}

// totalFaults lets another program send meter events for a customer.
func (w *billingFaults) totalFaults() {
	w.stripe.AddCustomer("cus_total")
	x := w.billed("cus_total")
	w.awaitApplied(x, 3)
	w.closes(x)
	within(w.t, "the push is delivered", func(context.Context) (bool, string) {
		return w.count(`SELECT count(*) FROM pushes WHERE tenant_id = $1 AND state = 'DELIVERED'`, x.id) == 1, ""
	})
	reconcile := func() {
		w.run(`UPDATE pushes SET delivered_at = delivered_at - interval '1 hour' WHERE state = 'DELIVERED'`)
		w.runStep(&brokenPart{}, step{command: "meterplex pushes reconcile"})
	}
	w.happen(&brokenPart{alert: "MeterplexBillingDifference", shown: above("meterplex_billing_difference", 0), known: w.known(x, "PUSH"),
		breaks: func() {
			w.otherProgram(4)
			reconcile()
		},
		mends: func() {
			w.otherProgram(-4)
			reconcile()
		}})
}

// otherProgram sends a meter event that is none of ours.
func (w *billingFaults) otherProgram(amount int) {
	w.t.Helper()
	form := url.Values{"event_name": {"api_calls"}, "identifier": {fmt.Sprint("other", amount)}, "timestamp": {fmt.Sprint(time.Now().Unix())}, "payload[stripe_customer_id]": {"cus_total"}, "payload[value]": {fmt.Sprint(amount)}}
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.stripe.URL+"/v1/billing/meter_events", strings.NewReader(form.Encode()))
	must.OK(w.t, err)
	r.Header.Set("Authorization", "Bearer "+w.stripe.Key)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := w.http.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		w.t.Fatalf("%+v %v", answer, err)
	}
	_ = answer.Body.Close()
}
