package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/internal/must"
)

// poisonFaults lets the database refuse what folds write, and the broker refuse a record.
func (w *alertsService) poisonFaults() {
	waits, waives, x := w.createTenants(w.front, 1)[0], w.createTenants(w.front, 1)[0], w.createTenants(w.front, 1)[0]
	g := &billingFaults{w.alertsTest, w.stripe}
	const errors = `meterplex_events_consumed_total{consumer="meterplex-usage-aggregator",result="error"}`
	w.happen(
		&brokenPart{alert: "MeterplexDeadLetters", shown: grown(`meterplex_events_dlq_total{stage="AGGREGATION"}`), over: always, rate: true,
			breaks: func() {
				w.run(`ALTER TABLE usage_aggregates ADD CONSTRAINT planted CHECK (tenant_id NOT IN ('` + waits.id + `', '` + waives.id + `')) NOT VALID`)
				for _, x := range []*tenant{waits, waives} {
					w.ingest(w.front, x, "accepted", events("poison", 10, "api_calls")...)
				}
			},
			mends:    func() { w.run(`ALTER TABLE usage_aggregates DROP CONSTRAINT planted`) },
			remedies: []string{"meterplex dead-letters bulk retry"}},
		&brokenPart{alert: "MeterplexConsumerErrors", labels: `consumer="meterplex-usage-aggregator"`, shown: grown(errors), over: always, rate: true, words: map[string]string{"NAME": "meterplex-usage-aggregator"}, breaks: func() {}},
		&brokenPart{alert: "MeterplexSagaLate", shown: above(`meterplex_saga_open{state="PARTIAL"}`, 0), known: g.known(waits, "SAGA"),
			breaks: func() {
				for _, x := range []*tenant{waits, waives} {
					within(w.t, "the events are dead letters", func(context.Context) (bool, string) {
						n := w.count(`SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND generation = 1 AND status = 'FAILED'`, x.id)
						return n == 10, fmt.Sprint(n)
					})
				}
				g.closes(waits)
				w.run(`UPDATE sagas SET deadline_at = now() WHERE tenant_id = '` + waits.id + `'`)
				g.soon(waits)
			},
			remedies: []string{"meterplex sagas retry ID"}},
		&brokenPart{alert: "MeterplexSagaPartial", shown: grown(`meterplex_saga_completed_total{outcome="partial"}`), over: always, known: g.known(waives, "SAGA"),
			breaks: func() { g.closes(waives, "dead_letters") }},
	)
	w.happen(
		&brokenPart{alert: "MeterplexRecordsWithheld", labels: `topic="usage.validated"`, shown: grown(`meterplex_events_withheld_total{topic="usage.validated"}`), over: always,
			breaks: func() {
				w.greatestRecord("500")
				w.withholdOne(x)
			},
			mends:    func() { w.greatestRecord("1048588") },
			remedies: []string{"meterplex dead-letters bulk retry --stage PUBLISHING"}},
		&brokenPart{alert: "MeterplexPublishRefused", labels: `topic="usage.validated",by="broker"`, shown: grown(`meterplex_publish_refused_total{by="broker",topic="usage.validated"}`), over: always, breaks: func() {}},
	)
}

// withholdOne records usage whose verdict the broker refuses for its size. A busy broker answers before it knows the greatest size, so that
// more may be needed.
func (w *alertsService) withholdOne(x *tenant) {
	w.t.Helper()
	for range 20 {
		one := events("", 1, "api_calls")
		noise := make([]byte, 120) // incompressible
		_, _ = rand.Read(noise)
		one[0].EventID = hex.EncodeToString(noise)
		w.ingest(w.front, x, "accepted", one...)
		for range 50 {
			if w.count(`SELECT count(*) FROM withheld_records`) > 0 {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	w.t.Fatal("the broker refuses no record")
}

// greatestRecord sets the size of records that the broker accepts.
func (w *alertsService) greatestRecord(bytes string) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	answers, err := kadm.NewClient(c).AlterTopicConfigs(w.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, w.prefix+"usage.validated")
	if err == nil {
		_, err = answers.On(w.prefix+"usage.validated", nil)
	}
	must.OK(w.t, err)
}

// pipeFaults freezes the instance that aggregates and sends webhooks, kills and cuts off the one that relays, and deletes a row of the log.
func (w *alertsService) pipeFaults() {
	x := w.createTenants(w.front, 1)[0]
	works := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w.t.Cleanup(works.Close)
	var hook struct{ ID string }
	hooks := "/api/v1/tenants/" + x.id + "/webhooks"
	w.ask(w.operator, http.MethodPost, w.front, hooks, object{"url": works.URL, "events": []string{"period.closed"}}, &hook, http.StatusCreated)
	const lag, events600, due = `meterplex_projection_lag_seconds`, `meterplex_projection_lag_events{projection="usage_aggregates"}`, "meterplex_webhook_oldest_due_seconds"
	const behind = `projection="usage_aggregates"`
	w.happen(
		&brokenPart{alert: "MeterplexProjectionLag", labels: behind, shown: above(lag+`{`+behind+`}`, 0), over: below(lag+`{`+behind+`}`, 1), ages: []string{lag + `{` + behind + `}`},
			breaks: func() {
				w.back.signal(syscall.SIGSTOP)
				w.frozen = w.back
				w.ingest(w.front, x, "accepted", events("late", 600, "api_calls")...)
			},
			mends: func() {
				w.back.signal(syscall.SIGCONT)
				w.frozen = nil
			}},
		&brokenPart{alert: "MeterplexProjectionBacklog", labels: behind, shown: above(events600, 500), ages: []string{lag + `{` + behind + `}`}, breaks: func() {}},
		&brokenPart{alert: "MeterplexWebhooksLate", shown: above(due, 0), ages: []string{due},
			breaks: func() {
				w.ask(w.operator, http.MethodPost, w.front, hooks+"/"+hook.ID+"/test", object{}, nil, http.StatusAccepted)
			}},
	)
	leases := func(_, now *feed.Scrape) bool { return sumOfSeries(now, "meterplex_relay_leases") < 32 }
	w.happen(&brokenPart{alert: "MeterplexPartitionWithoutLease", shown: leases, breaks: w.relay.kill, mends: w.relay.start})
	const oldest = "meterplex_outbox_oldest_unpublished_seconds"
	w.happen(&brokenPart{alert: "MeterplexOutboxStalled", shown: above(oldest, 0), over: below(oldest, 1), ages: []string{oldest},
		breaks: func() {
			w.cutBrokers(cuts)
			w.ingest(w.front, x, "accepted", events("waits", 3, "api_calls")...)
		},
		mends: func() { w.cutBrokers(passes) }})
	w.holeFault(x)
}

// cutBrokers cuts the relaying instance off from the brokers, or connects it again.
func (w *alertsService) cutBrokers(m proxyMode) {
	for _, p := range w.toBroker {
		p.set(m)
	}
}

// holeFault deletes a row of the log as the superuser before it is published.
func (w *alertsService) holeFault(x *tenant) {
	row := ` FROM event_log_rows WHERE subject = 1 AND dedupe_key LIKE '%lost-0' AND tenant_id = '` + x.id + `'`
	w.happen(&brokenPart{alert: "MeterplexLogHole", shown: above("meterplex_log_holes_total", 0), over: always,
		breaks: func() {
			w.relay.kill()
			w.ingest(w.front, x, "accepted", events("lost", 2, "api_calls")...)
			w.run(`CREATE TABLE kept AS SELECT *`+row, `DELETE`+row)
			w.relay.start()
		},
		mends: func() { w.run(`INSERT INTO event_log_rows SELECT * FROM kept`) }})
	for _, i := range w.targets {
		i.forget("the log has a hole")
	}
}

// forget removes the lines of the log with a text: the test caused them.
func (i *instance) forget(text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.logs = slices.DeleteFunc(i.logs, func(line string) bool { return strings.Contains(line, text) })
}
