package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// alertsService is an alertsTest of three instances, whose connections to the database and to the broker a test may cut.
type alertsService struct {
	*alertsTest
	relay           *instance
	back            *instance // aggregates and sends webhooks
	toFront, toBack *proxy    // from the instances to the database
	toBroker        []*proxy
	stripe          *stripetest.Server
}

// TestEveryAlertFiresForItsFault breaks the parts of a service, scrapes it, follows the runbooks, and feeds the scrapes to the rules. Only the clock of the rules is simulated.
func TestEveryAlertFiresForItsFault(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newAlertsService(t)
	var data sync.WaitGroup
	data.Go(func() { w.group(t, "figures", (*alertsTest).figureFaults) })
	data.Go(func() { w.group(t, "letters", (*alertsTest).letterFaults) })
	data.Go(func() { w.group(t, "billing", func(g *alertsTest) { (&billingFaults{g, w.stripe}).happenAll() }) })
	if data.Wait(); t.Failed() {
		return
	}
	w.poisonFaults()
	w.pipeFaults()
	w.databaseCuts()
	w.processFaults()
	w.fires()
	w.checkCovered()
}

func newAlertsService(t *testing.T) *alertsService {
	w := &alertsService{alertsTest: &alertsTest{deployment: newDeployment(t), dir: t.TempDir(), fed: &fedFaults{}}}
	w.database = w.sql.Config().ConnString()
	to := func() string { return hostOf(w.db) }
	w.toFront, w.toBack, w.toBroker = newProxy(t, to), newProxy(t, to), newPipeProxies(t, w.brokers().Brokers())
	w.toFront.start()
	w.toBack.start()
	w.stripe = stripetest.New("sk_test_alerts", time.Now().UTC())
	w.stripe.Real = true // the tests of a busy machine last longer than Stripe lets the time of an event be ahead
	t.Cleanup(w.stripe.Close)
	w.stripe.AddMeter(stripetest.Meter{Event: "api_calls"})
	w.front = w.serve("api,projector,commands,sagas,biller,deadletter,validator", "DATABASE_URL="+atHost(w.db, w.toFront.addr()),
		"METERPLEX_STRIPE_KEY=sk_test_alerts", "METERPLEX_STRIPE_URL="+w.stripe.URL, "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8", "METERPLEX_ROLLBACK_KEEP=1s")
	address := "DATABASE_URL=" + atHost(w.db, w.toBack.addr())
	w.relay = w.serve("relay", address, "KAFKA_BROKERS="+w.toBroker[0].addr())
	w.back = w.serve("aggregator,notifier", address, "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8")
	w.targets = []*instance{w.front, w.relay, w.back}
	w.catalogue(w.front)
	t.Cleanup(w.logSagas)
	return w
}

// logSagas logs the sagas that have not ended, if the test failed.
func (w *alertsService) logSagas() {
	if !w.t.Failed() {
		return
	}
	var open string
	err := w.sql.QueryRow(context.Background(), `SELECT coalesce(string_agg(format('%s of %s: %s, step %s, missing %s despite %s: %s', kind, tenant_id, state, step, missing, despite, last_error), E'\n'), '') FROM sagas WHERE ended_at IS NULL`).Scan(&open)
	w.t.Logf("open sagas: %s %v", open, err)
}

// figureFaults changes rows of projections and accounts as the superuser.
func (w *alertsTest) figureFaults() {
	at := w.front
	x := w.createTenants(at, 1)[0]
	w.ingest(at, x, "accepted", events("figures", 20, "api_calls")...)
	w.ingest(at, x, "accepted", events("limited", 3, "calls")...)
	w.awaitApplied(x, 23)
	w.fed.aggregates.Lock()
	defer w.fed.aggregates.Unlock()
	w.happen(
		&brokenPart{alert: "MeterplexIdentityBroken", shown: below("meterplex_identity_holds", 1), over: every("meterplex_identity_holds", 0),
			breaks: func() {
				w.run(`DELETE FROM usage_aggregates WHERE feature = 'api_calls' AND tenant_id = '` + x.id + `'`)
			},
			remedies: []string{"meterplex projections verify usage_aggregates --repair"}},
		&brokenPart{alert: "MeterplexQuotaDrift", shown: above("meterplex_quota_drift", 0), words: map[string]string{"ID": x.id},
			breaks:   func() { w.run(`UPDATE quota_accounts SET used = used + 5 WHERE tenant_id = '` + x.id + `'`) },
			remedies: []string{"meterplex entitlements reconcile --tenant-id ID --repair"}},
		&brokenPart{alert: "MeterplexProjectionDrift", labels: `projection="usage_series"`, shown: above(`meterplex_projection_drift_rows{projection="usage_series"}`, 0), words: map[string]string{"usage_aggregates": "usage_series"},
			breaks: func() {
				w.run(`UPDATE usage_series SET amount = amount + 1 WHERE tenant_id = '` + x.id + `'`)
				w.runStep(&brokenPart{}, step{command: "meterplex projections verify usage_series # exit code 1"})
			},
			remedies: []string{"meterplex projections verify usage_aggregates --repair"}},
	)
}

// awaitApplied waits until events of a tenant are in the figures.
func (w *alertsTest) awaitApplied(x *tenant, n int) {
	w.t.Helper()
	within(w.t, "the figures have the events", func(context.Context) (bool, string) {
		applied := w.count(`SELECT coalesce(max(n), 0) FROM (SELECT sum(applied_count) AS n FROM usage_aggregates WHERE tenant_id = $1 GROUP BY generation) g`, x.id)
		return applied >= n, fmt.Sprint(applied)
	})
}

// letterFaults sends wrong usage, and makes a key that ends soon.
func (w *alertsTest) letterFaults() {
	at := w.front
	x := w.createTenants(at, 1)[0]
	first := events("conflicts", 3, "api_calls")
	w.ingest(at, x, "accepted", first...)
	var key struct{ ID string }
	const refused = `meterplex_events_dlq_total{stage="INGESTION",topic="usage.commands"}`
	group := map[string]string{"ID": x.id}
	w.happen(
		&brokenPart{alert: "MeterplexPayloadConflicts", shown: grown("meterplex_payload_conflicts_total"), over: always, words: group,
			breaks: func() {
				for i := range first {
					first[i].Amount += 10
				}
				w.ingest(at, x, "conflict", first...)
			},
			remedies: []string{"meterplex dead-letters bulk discard"}},
		&brokenPart{alert: "MeterplexUsageRefused", shown: func(before, now *feed.Scrape) bool {
			return sumOfSeries(now, refused) >= sumOfSeries(before, refused)+15
		}, over: always, rate: true, words: group,
			breaks: func() {
				producer := newExternalProducer(w.deployment)
				for range 15 {
					producer.produce(x.id, []byte(`{"events":5}`))
				}
			},
			remedies: []string{"meterplex dead-letters bulk discard"}},
		&brokenPart{alert: "MeterplexFailedDeadLetters", shown: func(_, now *feed.Scrape) bool {
			return sumOfSeries(now, `meterplex_dead_letters{status="FAILED"}`) > 10
		}, words: group,
			breaks:   func() {}, // the same messages
			remedies: []string{"meterplex dead-letters bulk discard"}},
		&brokenPart{alert: "MeterplexOperatorKeyExpires", shown: below("meterplex_operator_key_expires_seconds", 14*86400), over: func(_, now *feed.Scrape) bool {
			return len(now.Metric("meterplex_operator_key_expires_seconds")) == 0
		},
			breaks: func() {
				w.ask(w.operator, http.MethodPost, at, "/api/v1/operator-keys", object{"name": "ends", "scopes": []string{"audit"}, "expiresAt": time.Now().Add(7 * 24 * time.Hour).UTC().Format(time.RFC3339)}, &key, http.StatusCreated)
			},
			known:    func() map[string]string { return map[string]string{"ID": key.ID} },
			remedies: []string{"meterplex keys revoke"}},
	)
}
