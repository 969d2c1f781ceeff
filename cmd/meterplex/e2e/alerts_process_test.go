package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

// databaseCuts fills the disk of the database, as far as the service sees it, and cuts the instances off from it.
func (w *alertsService) databaseCuts() {
	x := w.createTenants(w.front, 1)[0]
	send := func(want int) {
		w.ask(x.key, http.MethodPost, w.front, "/api/v1/usage/events", object{"events": events(uuid.NewString(), 1, "api_calls")}, nil, want)
	}
	burn := func(alert string) *brokenPart {
		return &brokenPart{alert: alert, labels: `slo="ingest_answered"`, shown: grown(`meterplex_objective_requests_total{objective="ingest",result="error"}`), over: always, rate: true, breaks: func() {}}
	}
	first := burn("MeterplexSLOBurn14_4")
	first.quiet = func() {
		for range 10 {
			send(http.StatusAccepted)
		}
	}
	first.breaks = func() {
		w.run(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`,
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
	w.happen(first, burn("MeterplexSLOBurn6"), burn("MeterplexSLOBurn3"), burn("MeterplexSLOBurn1"))

	const age, compared = "meterplex_state_age_seconds", "meterplex_identity_age_seconds"
	address := []string{"DATABASE_URL=" + atHost(w.db, w.toFront.addr())}
	front := `instance="` + w.front.name + `"`
	w.happen(&brokenPart{alert: "MeterplexInstanceStateNotRead", labels: front, shown: above(age+"{"+front+"}", 4), ages: []string{age + "{" + front + "}"}, env: address,
		breaks: func() { w.toFront.set(cuts) }, mends: func() { w.toFront.set(passes) }})
	w.happen(
		&brokenPart{alert: "MeterplexStateNotRead", shown: every(age, 4), over: below(age, 4), ages: []string{age}, env: address,
			breaks: func() {
				w.toFront.set(cuts)
				w.toBack.set(cuts)
			},
			mends: func() {
				w.toFront.set(passes)
				w.toBack.set(passes)
			}},
		&brokenPart{alert: "MeterplexIdentityNotCompared", shown: every(compared, 13), over: below(compared, 10), ages: []string{compared}, threshold: time.Hour, breaks: func() {}},
	)
}

// processFaults lets a certificate end soon, drops a metric as a rule of Prometheus does, and ends all instances.
func (w *alertsService) processFaults() {
	ca := localtest.NewCA(w.t, "alerts")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.PEM))
	w.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	cert, key := ca.Sign(w.t, "meterplex", 7*24*time.Hour, "127.0.0.1").Files(w.t)
	good, goodKey := ca.Sign(w.t, "meterplex", 60*24*time.Hour, "127.0.0.1").Files(w.t)
	secured := w.serve("api", "METERPLEX_HTTP_TLS_CERT="+good, "METERPLEX_HTTP_TLS_KEY="+goodKey)
	w.targets = append(w.targets, secured)
	ends := func(with ...string) {
		secured.stop()
		secured.env = append(secured.env, with...)
		secured.start()
	}
	const expires = "meterplex_certificate_expires_seconds"
	w.happen(&brokenPart{alert: "MeterplexCertificateExpires", labels: `instance="` + secured.name + `"`, shown: below(expires, 14*86400), env: []string{"METERPLEX_HTTP_TLS_CERT=" + cert},
		breaks: func() { ends("METERPLEX_HTTP_TLS_CERT="+cert, "METERPLEX_HTTP_TLS_KEY="+key) },
		mends:  func() { ends("METERPLEX_HTTP_TLS_CERT="+good, "METERPLEX_HTTP_TLS_KEY="+goodKey) }})
	secured.stop()
	w.targets = w.targets[:3]

	const metric = "meterplex_wal_limit_bytes"
	w.happen(&brokenPart{alert: "MeterplexMetricAbsent", labels: `metric="` + metric + `"`, words: map[string]string{"METRIC": metric},
		shown:  func(_, now *feed.Scrape) bool { return len(now.Metric(metric)) == 0 },
		breaks: func() { w.relabel = regexp.MustCompile(`(?m)^` + metric + ` .*\n`) }, mends: func() { w.relabel = nil }})

	w.happen(&brokenPart{alert: "MeterplexNoInstance", shown: func(_, now *feed.Scrape) bool {
		return strings.Join(slices.Collect(maps.Values(now.Instances)), "") == ""
	},
		breaks: func() {
			for _, i := range w.targets {
				i.kill()
			}
		},
		mends: w.front.start})
}
