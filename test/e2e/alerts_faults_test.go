package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
	"github.com/meterplex/meterplex/test/observe/feed"
)

// faultsOfFigures changes rows of projections and accounts as the superuser, sends wrong usage, and makes a key that ends soon.
func (w *alerts) faultsOfFigures() {
	x := w.used("api_calls", 20)
	w.ingest(w.front, x, "accepted", events("limited", 3, "calls")...)
	w.awaitApplied(x, 23)
	const refused = `meterplex_events_ingested_total{verdict="rejected"}`
	const expires, of = "meterplex_operator_key_expires_seconds", ` WHERE tenant_id = `
	id := func() map[string]string { return map[string]string{"ID": x.id} }
	discard := []string{"meterplex dead-letters bulk discard"}
	var key struct{ ID string }
	w.happen(
		&alertFault{alert: "MeterplexIdentityBroken", shown: below("meterplex_identity_holds", 1),
			over:     every("meterplex_identity_holds", 0),
			breaks:   func() { w.run(`DELETE FROM usage_aggregates` + of + `'` + x.id + `' AND feature = 'api_calls'`) },
			remedies: []string{"meterplex projections verify usage_aggregates --repair"}},
		&alertFault{alert: "MeterplexQuotaDrift", shown: above("meterplex_quota_drift", 0), words: id,
			breaks:   func() { w.run(`UPDATE quota_accounts SET used = used + 5` + of + `'` + x.id + `'`) },
			remedies: []string{"meterplex entitlements reconcile --tenant ID --repair"}},
		&alertFault{alert: "MeterplexProjectionDrift", labels: `projection="usage_series"`,
			shown: above(`meterplex_projection_drift_rows{projection="usage_series"}`, 0),
			words: func() map[string]string { return map[string]string{"usage_aggregates": "usage_series"} },
			breaks: func() {
				w.run(`UPDATE usage_series SET amount = amount + 1` + of + `'` + x.id + `'`)
				w.runStep(&alertFault{}, step{command: "meterplex projections verify usage_series # exit code 1"})
			},
			remedies: []string{"meterplex projections verify usage_aggregates --repair"}},
		&alertFault{alert: "MeterplexPayloadConflicts", shown: grown("meterplex_payload_conflicts_total", 0), over: always, words: id,
			breaks: func() {
				again := events("used", 3, "api_calls")
				for i := range again {
					again[i].Amount += 10
				}
				w.ingest(w.front, x, "conflict", again...)
			}, remedies: discard},
		&alertFault{alert: "MeterplexUsageRefused", shown: grown(refused, 14), over: always, rate: true, words: id,
			breaks: func() {
				producer := newExternalProducer(w.deployment)
				for range 15 {
					producer.produce(x.id, []byte(`{"events":5}`))
				}
			}, remedies: discard},
		&alertFault{alert: "MeterplexFailedDeadLetters", shown: above(`meterplex_dead_letters{status="FAILED",stage="VALIDATION"}`, 10),
			breaks: func() {
				w.run(`INSERT INTO dead_letter_events (generation, id, partition, tenant_id, stage, status, code, reason, producer_event_id,
 feature, source_position, topic, retry_count, first_failed_at, last_failed_at)
 SELECT 1, gen_random_uuid(), 0, '` + x.id +
					`', 'VALIDATION', 'FAILED', 'waits', '', 'e', 'f', 1, 't', 0, now(), now() FROM generate_series(1, 11)`)
			},
			mends: func() { w.run(`DELETE FROM dead_letter_events WHERE code = 'waits' AND tenant_id = '` + x.id + `'`) }},
		&alertFault{alert: "MeterplexOperatorKeyExpires", shown: below(expires, 14*86400),
			over: func(_, now *feed.Scrape) bool { return len(now.Metric(expires)) == 0 },
			breaks: func() {
				ends := time.Now().Add(7 * 24 * time.Hour).UTC().Format(time.RFC3339)
				w.ask(w.operator, http.MethodPost, w.front, "/api/v1/operator-keys",
					object{"name": "ends", "scopes": []string{"audit"}, "expiresAt": ends}, &key, http.StatusCreated)
			},
			words:    func() map[string]string { return map[string]string{"ID": key.ID} },
			remedies: []string{"meterplex keys revoke"}},
	)
}

// used makes a tenant with usage in the figures.
func (w *alerts) used(feature string, n int) *tenant {
	w.t.Helper()
	x := w.createTenants(w.front, 1)[0]
	w.ingest(w.front, x, "accepted", events("used", n, feature)...)
	w.awaitApplied(x, n)
	return x
}

// awaitApplied waits until events of a tenant are in the figures.
func (w *alerts) awaitApplied(x *tenant, n int) {
	w.t.Helper()
	w.becomes("the figures have the events", n,
		`SELECT coalesce(max(n), 0) FROM (SELECT sum(applied_count)::bigint AS n FROM usage_aggregates
 WHERE tenant_id = $1 GROUP BY generation) g`, x)
}

// becomes waits until a statement about a tenant counts n rows.
func (w *alerts) becomes(condition string, n int, sql string, x *tenant) {
	w.t.Helper()
	within(w.t, condition, func(context.Context) (bool, string) {
		got := w.count(sql, x.id)
		return got == n, fmt.Sprint(got)
	})
}

// month is the present month, as a period.
func month() string { return time.Now().UTC().Format("2006-01") }

// billed makes a tenant with usage and a customer.
func (w *alerts) billed(customer string) *tenant {
	w.t.Helper()
	x := w.used("api_calls", 3)
	w.ask(w.operator, http.MethodPut, w.front, "/api/v1/tenants/"+x.id+"/billing", object{"provider": "stripe", "customer": customer}, nil,
		http.StatusOK)
	return x
}

// closes requests the close of a tenant's month.
func (w *alerts) closes(x *tenant) {
	w.t.Helper()
	w.ask(w.operator, http.MethodPost, w.front, "/api/v1/tenants/"+x.id+"/periods/"+month()+"/close",
		object{"reason": "a test", "early": true}, nil, http.StatusAccepted)
}

// closesPartially requests a close that waits for dead letters, and lets its deadline pass.
func (w *alerts) closesPartially(x *tenant) {
	w.t.Helper()
	w.becomes("the events are dead letters", 10,
		`SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND generation = 1 AND status = 'FAILED'`, x)
	w.closes(x)
	const saga = ` FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND `
	w.becomes("the close waits", 1, `SELECT count(*)`+saga+`'dead_letters' = ANY (missing) AND NOT 'not_aggregated' = ANY (missing)`, x)
	w.run(`UPDATE sagas SET deadline_at = now() WHERE tenant_id = '` + x.id + `'`)
	w.soon(x)
	w.becomes("the close is partial", 1, `SELECT count(*)`+saga+`state = 'PARTIAL'`, x)
}

// idsOf returns the words of a runbook about a tenant. ID is the word that it is given: that of its saga, of its push, or of the tenant.
func (w *alerts) idsOf(x *tenant, id string) func() map[string]string {
	return func() map[string]string {
		words := map[string]string{"TENANT": x.id, "2026-05": month()}
		for word, from := range map[string]string{"PUSH": "pushes WHERE", "SAGA": "sagas WHERE kind = 'period_close' AND",
			"WEBHOOK": "webhooks WHERE"} {
			var found string
			sql := `SELECT coalesce(min(id::text), '') FROM ` + from + ` tenant_id = $1`
			must.OK(w.t, w.sql.QueryRow(w.t.Context(), sql, x.id).Scan(&found))
			words[word] = found
		}
		words["ID"] = words[id]
		return words
	}
}

// soon lets attempts begin now that wait, as the clock does.
func (w *alerts) soon(x *tenant) {
	w.run(`UPDATE pushes SET next_at = now() WHERE next_at IS NOT NULL AND tenant_id = '`+x.id+`'`,
		`UPDATE sagas SET next_at = now() WHERE ended_at IS NULL AND lease IS NULL AND tenant_id = '`+x.id+`'`)
}

// faultsOfBilling lets the provider refuse the key and lose answers, another program send meter events, a close drift, a push be refused,
// and an endpoint be gone.
func (w *alerts) faultsOfBilling() {
	const open, delivered = `meterplex_billing_pushes_open{state="%s"}`, `SELECT count(*) FROM pushes WHERE tenant_id = $1 AND state =
 'DELIVERED'`
	for _, customer := range []string{"cus_key", "cus_unknown", "cus_total"} {
		w.stripe.AddCustomer(customer)
	}
	x := w.billed("cus_key")
	w.happen(
		&alertFault{alert: "MeterplexBillingKeyRefused", shown: grown(`meterplex_billing_push_attempts_total{outcome="key_refused"}`, 0),
			over:  always,
			words: w.idsOf(x, "PUSH"),
			breaks: func() {
				w.stripe.Draw(func() stripetest.Fault { return stripetest.Unauthorized })
				w.closes(x)
			}},
		&alertFault{alert: "MeterplexPushLate", shown: above("meterplex_billing_oldest_open_push_seconds", 86400),
			words: w.idsOf(x, "PUSH"),
			breaks: func() {
				w.becomes("the push waits", 1, `SELECT count(*) FROM pushes WHERE tenant_id = $1 AND last_code = 'provider_key_refused'`, x)
				w.run(`UPDATE pushes SET stored_at = now() - interval '25 hours' WHERE tenant_id = '` + x.id + `'`)
			},
			mends: func() {
				w.stripe.Draw(nil)
				within(w.t, "the push is delivered", func(context.Context) (bool, string) {
					w.soon(x) // each time: an attempt that was refused as the provider was mended sets a later one
					return w.count(delivered, x.id) == 1, ""
				})
			}})
	unknown := w.billed("cus_unknown")
	w.happen(&alertFault{alert: "MeterplexPushUnknown", shown: above(fmt.Sprintf(open, "UNKNOWN"), 0), words: w.idsOf(unknown, "PUSH"),
		breaks: func() {
			w.stripe.Draw(func() stripetest.Fault { return stripetest.Lose })
			w.closes(unknown)
		},
		mends:    func() { w.stripe.Draw(nil) },
		remedies: []string{"meterplex pushes resolve ID --no-delivered"}})

	total := w.billed("cus_total")
	w.closes(total)
	w.becomes("the push is delivered", 1, delivered, total)
	w.happen(&alertFault{alert: "MeterplexBillingDifference", shown: above("meterplex_billing_difference", 0),
		words:  w.idsOf(total, "PUSH"),
		breaks: func() { w.otherProgram("4") }, mends: func() { w.otherProgram("-4") }})

	refused, drifts := w.billed("cus_missing"), w.used("api_calls", 3)
	gone := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) { a.WriteHeader(http.StatusGone) }))
	w.t.Cleanup(gone.Close)
	w.happen(
		&alertFault{alert: "MeterplexPushFailed", shown: above(fmt.Sprintf(open, "FAILED"), 0), words: w.idsOf(refused, "PUSH"),
			breaks:   func() { w.closes(refused) },
			mends:    func() { w.stripe.AddCustomer("cus_missing") },
			remedies: []string{"meterplex pushes retry ID"}},
		&alertFault{alert: "MeterplexPeriodDrift", shown: above(`meterplex_saga_open{state="DRIFT"}`, 0), words: w.idsOf(drifts, "TENANT"),
			breaks: func() {
				w.run(`UPDATE usage_aggregates SET amount = amount + 1 WHERE tenant_id = '` + drifts.id + `'`)
				w.closes(drifts)
			},
			remedies: []string{"meterplex projections verify usage_aggregates --tenant ID --repair", "meterplex sagas retry SAGA"}},
		&alertFault{alert: "MeterplexWebhookDisabled", labels: `reason="gone"`,
			shown: grown(`meterplex_webhooks_disabled_total{reason="gone"}`,
				0),
			over: always, words: w.idsOf(refused, "TENANT"), breaks: func() { w.testWebhook(refused, gone.URL) }})
}

// testWebhook gives a tenant a webhook, and sends it a test.
func (w *alerts) testWebhook(x *tenant, to string) {
	w.t.Helper()
	var hook struct{ ID string }
	path := "/api/v1/tenants/" + x.id + "/webhooks"
	w.ask(w.operator, http.MethodPost, w.front, path, object{"url": to, "events": []string{"period.closed"}}, &hook, http.StatusCreated)
	w.ask(w.operator, http.MethodPost, w.front, path+"/"+hook.ID+"/test", object{}, nil, http.StatusAccepted)
}

// otherProgram sends a meter event for a customer as another program would, and compares the totals.
func (w *alerts) otherProgram(amount string) {
	w.t.Helper()
	form := url.Values{"event_name": {"api_calls"}, "identifier": {"other" + amount}, "timestamp": {fmt.Sprint(time.Now().Unix())},
		"payload[stripe_customer_id]": {"cus_total"}, "payload[value]": {amount}}
	to := w.stripe.URL + "/v1/billing/meter_events"
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, to, strings.NewReader(form.Encode()))
	must.OK(w.t, err)
	r.Header.Set("Authorization", "Bearer "+w.stripe.Key)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := w.http.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		w.t.Fatalf("%+v %v", answer, err)
	}
	_ = answer.Body.Close()
	w.run(`UPDATE pushes SET delivered_at = delivered_at - interval '1 hour' WHERE state = 'DELIVERED'`)
	w.runStep(&alertFault{}, step{command: "meterplex pushes reconcile"})
}

// faultsOfFolds lets the database refuse the rows of two tenants, whose closes become partial, and the broker refuse a record.
func (w *alerts) faultsOfFolds() {
	made := w.createTenants(w.front, 3)
	waits, waives := made[0], made[1]
	const errors = `meterplex_events_consumed_total{consumer="meterplex-usage-aggregator",result="error"}`
	w.happen(
		&alertFault{alert: "MeterplexDeadLetters", shown: grown(`meterplex_events_dlq_total{stage="AGGREGATION"}`, 0), over: always,
			rate: true,
			breaks: func() {
				w.run(`ALTER TABLE usage_aggregates ADD CONSTRAINT planted CHECK (tenant_id NOT IN ('` + waits.id + `', '` + waives.id +
					`')) NOT VALID`)
				for _, x := range made[:2] {
					w.ingest(w.front, x, "accepted", events("poison", 10, "api_calls")...)
				}
			},
			mends:    func() { w.run(`ALTER TABLE usage_aggregates DROP CONSTRAINT planted`) },
			remedies: []string{"meterplex dead-letters bulk retry"}},
		&alertFault{alert: "MeterplexConsumerErrors", labels: `consumer="meterplex-usage-aggregator"`, shown: grown(errors, 0),
			over:  always,
			rate:  true,
			words: func() map[string]string { return map[string]string{"NAME": "meterplex-usage-aggregator"} }},
		&alertFault{alert: "MeterplexSagaLate", shown: above(`meterplex_saga_open{state="PARTIAL"}`, 0), words: w.idsOf(waits, "SAGA"),
			breaks: func() { w.closesPartially(waits) }, remedies: []string{"meterplex sagas retry ID"}},
		&alertFault{alert: "MeterplexSagaPartial", shown: grown(`meterplex_saga_completed_total{outcome="partial"}`, 0), over: always,
			words: w.idsOf(waives, "SAGA"),
			breaks: func() {
				w.closesPartially(waives)
				w.follow("partial-close.md", w.idsOf(waives, "TENANT"), "Symptom", checkPart, "Close without them")
				w.becomes("the period is closed without its dead letters", 1,
					`SELECT count(*) FROM period_snapshots WHERE tenant_id = $1 AND despite = '{dead_letters}'`, waives)
				w.follow("partial-close.md", w.idsOf(waives, "TENANT"), "How to see that it is done")
			}})
	const topic = `topic="usage.validated"`
	w.happen(
		&alertFault{alert: "MeterplexRecordsWithheld", labels: topic, shown: grown(`meterplex_events_withheld_total{`+topic+`}`, 0),
			over: always,
			breaks: func() {
				w.greatestRecord("500")
				w.withholdOne(made[2])
			},
			mends:    func() { w.greatestRecord("1048588") },
			remedies: []string{"meterplex dead-letters bulk retry --stage PUBLISHING"}},
		&alertFault{alert: "MeterplexPublishRefused", labels: topic + `,by="broker"`, over: always,
			shown: grown(`meterplex_publish_refused_total{by="broker",`+topic+`}`, 0)})
}

// withholdOne records usage whose verdict the broker refuses for its size. A busy broker answers before it knows the greatest size, so that
// more may be needed.
func (w *alerts) withholdOne(x *tenant) {
	w.t.Helper()
	within(w.t, "the broker refuses a record", func(context.Context) (bool, string) {
		one, noise := events("", 1, "api_calls"), make([]byte, 120) // incompressible
		_, _ = rand.Read(noise)
		one[0].EventID = hex.EncodeToString(noise)
		w.ingest(w.front, x, "accepted", one...)
		return becomesTrueEvery(w.deployment, 100*time.Millisecond, 5*time.Second, func(context.Context) bool {
			return w.count(`SELECT count(*) FROM withheld_records`) > 0
		}), ""
	})
}

// greatestRecord sets the size of records that the broker accepts.
func (w *alerts) greatestRecord(bytes string) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	size := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}
	answers, err := kadm.NewClient(c).AlterTopicConfigs(w.t.Context(), size, w.prefix+"usage.validated")
	if err == nil {
		_, err = answers.On(w.prefix+"usage.validated", nil)
	}
	must.OK(w.t, err)
}

// faultsOfThePipe freezes the instance that aggregates and sends webhooks, kills and cuts off the one that relays, and deletes a row of
// the log.
func (w *alerts) faultsOfThePipe() {
	x := w.createTenants(w.front, 1)[0]
	works := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w.t.Cleanup(works.Close)
	const behind, due, oldest = `projection="usage_aggregates"`, "meterplex_webhook_oldest_due_seconds",
		"meterplex_outbox_oldest_unpublished_seconds"
	const lag = `meterplex_projection_lag_seconds{` + behind + `}`
	w.happen(
		&alertFault{alert: "MeterplexProjectionLag", labels: behind, shown: above(lag, 0), over: below(lag, 1), ages: []string{lag},
			breaks: func() {
				w.back.signal(syscall.SIGSTOP)
				w.frozen = w.back
				w.ingest(w.front, x, "accepted", events("late", 600, "api_calls")...)
			},
			mends: func() {
				w.back.signal(syscall.SIGCONT)
				w.frozen = nil
			}},
		&alertFault{alert: "MeterplexProjectionBacklog", labels: behind, shown: above(`meterplex_projection_lag_events{`+behind+`}`, 500),
			ages: []string{lag}},
		&alertFault{alert: "MeterplexWebhooksLate", shown: above(due, 0), ages: []string{due}, breaks: func() {
			w.testWebhook(x, works.URL)
		}})
	w.happen(&alertFault{alert: "MeterplexPartitionWithoutLease", breaks: w.relay.kill, mends: w.relay.start,
		shown: func(_, now *feed.Scrape) bool { return seriesSum(now, "meterplex_relay_leases") < 32 }})
	cut := func(m proxyMode) func() {
		return func() {
			for _, p := range w.toBroker {
				p.set(m)
			}
			if m == cuts {
				w.ingest(w.front, x, "accepted", events("waits", 3, "api_calls")...)
			}
		}
	}
	w.happen(&alertFault{alert: "MeterplexOutboxStalled", shown: above(oldest, 0), over: below(oldest, 1), ages: []string{oldest},
		breaks: cut(cuts), mends: cut(passes)})
	row := ` FROM event_log_rows WHERE subject = 1 AND dedupe_key LIKE '%lost-0' AND tenant_id = '` + x.id + `'`
	w.happen(&alertFault{alert: "MeterplexLogHole", shown: above("meterplex_log_holes_total", 0), over: always,
		breaks: func() {
			w.relay.kill()
			w.ingest(w.front, x, "accepted", events("lost", 2, "api_calls")...)
			w.run(`CREATE TABLE kept AS SELECT *`+row, `DELETE`+row)
			w.relay.start()
		},
		mends: func() { w.run(`INSERT INTO event_log_rows SELECT * FROM kept`) }})
	for _, i := range w.targets { // the test caused these lines
		i.mu.Lock()
		i.logs = slices.DeleteFunc(i.logs, func(line string) bool { return strings.Contains(line, "the log has a hole") })
		i.mu.Unlock()
	}
}

// faultsOfTheDatabase fills the disk of the database, as far as the service sees it, and cuts the instances off from it.
func (w *alerts) faultsOfTheDatabase() {
	x := w.createTenants(w.front, 1)[0]
	send := func(want int) {
		usage := object{"events": events(uuid.NewString(), 1, "api_calls")}
		w.ask(x.key, http.MethodPost, w.front, "/api/v1/usage/events", usage, nil, want)
	}
	burn := func(alert string) *alertFault {
		return &alertFault{alert: alert, labels: `slo="ingest_answered"`, over: always, rate: true,
			shown: grown(`meterplex_objective_requests_total{objective="ingest",result="error"}`, 0)}
	}
	first := burn("MeterplexSLOBurn14_4")
	first.breaks = func() {
		w.run(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
 $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`,
			`CREATE TRIGGER full_disk BEFORE INSERT ON event_log_rows FOR EACH STATEMENT EXECUTE FUNCTION full_disk()`)
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() { send(http.StatusServiceUnavailable) }) // it is answered when its time is over
		}
		wait.Wait()
	}
	first.mends = func() {
		w.run(`DROP TRIGGER full_disk ON event_log_rows`)
		send(http.StatusAccepted)
	}
	awaitFreshMetrics()
	w.earlier = []feed.Scrape{*w.scrape()} // the rules compare rates: there was traffic before the fault
	for range 10 {
		send(http.StatusAccepted)
	}
	w.happen(first, burn("MeterplexSLOBurn6"), burn("MeterplexSLOBurn3"), burn("MeterplexSLOBurn1"))

	const age, compared = "meterplex_state_age_seconds", "meterplex_identity_age_seconds"
	address, front := []string{"DATABASE_URL=" + atHost(w.db, w.toFront.addr())}, `instance="`+w.front.name+`"`
	ofFront := age + "{" + front + "}"
	w.happen(&alertFault{alert: "MeterplexInstanceStateNotRead", labels: front, shown: above(ofFront, 4), ages: []string{ofFront},
		env:    address,
		breaks: func() { w.toFront.set(cuts) }, mends: func() { w.toFront.set(passes) }})
	both := func(m proxyMode) func() {
		return func() {
			w.toFront.set(m)
			w.toBack.set(m)
		}
	}
	w.happen(
		&alertFault{alert: "MeterplexStateNotRead", shown: every(age, 4), over: below(age, 4), ages: []string{age}, env: address,
			breaks: both(cuts), mends: both(passes)},
		&alertFault{alert: "MeterplexIdentityNotCompared", shown: every(compared, 13), over: below(compared, 10), ages: []string{compared},
			threshold: time.Hour})
}

// faultsOfProcesses lets a certificate end soon, drops a metric as a rule of Prometheus does, and ends all instances.
func (w *alerts) faultsOfProcesses() {
	ca, roots := localtest.NewCA(w.t, "alerts"), x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.PEM))
	w.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	signed := func(days time.Duration) []string {
		cert, key := ca.Sign(w.t, "meterplex", days*24*time.Hour, "127.0.0.1").Files(w.t)
		return []string{"METERPLEX_HTTP_TLS_CERT=" + cert, "METERPLEX_HTTP_TLS_KEY=" + key}
	}
	soon, good := signed(7), signed(60)
	secured := w.serve("api", good...)
	w.targets = append(w.targets, secured)
	with := func(settings []string) func() {
		return func() {
			secured.stop()
			secured.env = append(secured.env, settings...)
			secured.start()
		}
	}
	w.happen(&alertFault{alert: "MeterplexCertificateExpires", labels: `instance="` + secured.name + `"`, env: soon[:1],
		shown: below("meterplex_certificate_expires_seconds", 14*86400), breaks: with(soon), mends: with(good)})
	secured.stop()
	w.targets = w.targets[:3]

	const metric = "meterplex_wal_limit_bytes"
	w.happen(&alertFault{alert: "MeterplexMetricAbsent", labels: `metric="` + metric + `"`,
		words:  func() map[string]string { return map[string]string{"METRIC": metric} },
		shown:  func(_, now *feed.Scrape) bool { return len(now.Metric(metric)) == 0 },
		breaks: func() { w.relabel = regexp.MustCompile(`(?m)^` + metric + ` .*\n`) }, mends: func() { w.relabel = nil }})
	w.happen(&alertFault{alert: "MeterplexNoInstance", mends: w.front.start,
		shown: func(_, now *feed.Scrape) bool {
			return strings.Join(slices.Collect(maps.Values(now.Instances)), "") == ""
		},
		breaks: func() {
			for _, i := range w.targets {
				i.kill()
			}
		}})
}

// faultsOfTheServer lets the archive fail while the standby is gone, a slot without a reader keep WAL, and pg_monitor be revoked. It then
// kills the primary and promotes the standby.
func (w *alerts) faultsOfTheServer() {
	p := w.servers
	const archived, wal, limit, monitored = "meterplex_wal_archived_seconds", "meterplex_wal_bytes", "meterplex_wal_limit_bytes",
		"meterplex_database_monitored"
	var fails time.Time
	w.happen(
		&alertFault{alert: "MeterplexArchiveOld", ages: []string{archived}, shown: func(_, now *feed.Scrape) bool {
			return seriesSum(now, archived) > now.At.Sub(fails).Seconds()/2 && now.At.Sub(fails) > time.Second
		},
			breaks: func() {
				p.archive("false")
				fails = time.Now()
			},
			mends: func() { p.archive("true") }},
		&alertFault{alert: "MeterplexStandbyMissing", shown: above("meterplex_synchronous_standbys_missing", 0),
			breaks: func() {
				_ = syscall.Kill(p.standby.PID(), syscall.SIGKILL)
				<-p.standby.Done()
			},
			mends: func() {
				must.OK(w.t, p.standby.Restart(w.t.Context()))
				p.awaitStandby()
			}})
	w.happen(&alertFault{alert: "MeterplexWALRetained", remedies: []string{"psql"},
		words: func() map[string]string { return map[string]string{"NAME": "idle"} },
		shown: func(_, now *feed.Scrape) bool { return seriesSum(now, wal) > 0.8*seriesSum(now, limit) },
		breaks: func() {
			p.admin(p.primary, `SELECT pg_create_physical_replication_slot('idle', true)`)
			for range 7 {
				p.admin(p.primary, `SELECT pg_logical_emit_message(false, 'test', 'x')`, `SELECT pg_switch_wal()`)
			}
			p.awaitStandby()
		}})
	w.happen(&alertFault{alert: "MeterplexDatabaseNotMonitored", shown: below(monitored, 1), over: above(monitored, 0),
		remedies: []string{"psql"},
		breaks:   func() { p.admin(p.primary, `REVOKE pg_monitor FROM meterplex`) }})
	w.happen(&alertFault{alert: "MeterplexServerReplaced", labels: `reason="promoted"`, lasts: true, env: []string{"STANDBY=" +
		ofDatabase(p.standby)},
		shown: func(_, now *feed.Scrape) bool {
			return len(now.Metric(`meterplex_log_epoch_raised_seconds{reason="promoted"}`)) > 0
		},
		breaks: func() {
			p.killPrimary()
			appendTo(w.t, filepath.Join(p.standby.Dir(), "data", "postgresql.auto.conf"), "synchronous_standby_names = ''\n")
			p.admin(p.standby, `SELECT pg_reload_conf()`)
			for _, s := range transcript(w.t, filepath.Join("docs", "runbooks", "failover.md"), "## Promote the standby\n") {
				s.command = strings.ReplaceAll(s.command, "$STANDBY", ofDatabase(p.standby))
				w.runStep(&alertFault{alert: "MeterplexServerReplaced"}, s)
			}
			p.promoted()
			w.sql.Reset()
		}})
}

// archive sets archive_command.
func (p *serverPair) archive(command string) {
	p.admin(p.primary, fmt.Sprintf(`ALTER SYSTEM SET archive_command = '%s'`, command), `SELECT pg_reload_conf()`, `SELECT pg_switch_wal()`)
}
