package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"
)

// createTenantsApart creates tenants in different partitions.
func createTenantsApart(w *deployment, at *instance, n int) (all []*tenant) {
	w.t.Helper()
	w.createTenants(at, 3*n)
	in := map[int]*tenant{}
	for _, x := range w.tenants {
		if p := partitionOf(x.id); in[p] == nil && len(in) < n {
			in[p] = x
		}
	}
	if len(in) < n {
		w.t.Fatalf("%d tenants are in only %d partitions", 3*n, len(in))
	}
	return slices.Collect(maps.Values(in))
}

// retryDeadLetter retries the dead letter of an event that was rejected after it was accepted. The
// tenant has a subscription again.
func retryDeadLetter(w *deployment, at *instance, x *tenant, refused event) {
	w.t.Helper()
	within(w.t, "the refused event is a dead letter", func(ctx context.Context) (bool, string) {
		var page struct{ Data []deadLetter }
		w.ask(w.operator, http.MethodGet, at, "/api/v1/dead-letters?stage=VALIDATION&tenantId="+x.id, nil, &page, http.StatusOK)
		for _, letter := range page.Data {
			if letter.EventID == refused.EventID {
				w.ask(w.operator, http.MethodPost, at, "/api/v1/dead-letters/"+letter.ID+"/retry", object{"reason": "a test"}, nil,
					http.StatusAccepted)
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", page.Data)
	})
}

// sendGroups sends usage of one hour in several groups, and some that has no value.
func sendGroups(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	hour := time.Now().UTC().Truncate(time.Hour)
	var list []object
	for n, metadata := range []object{{"region": "eu"}, {"region": "us"}, {"region": "a < \"b\" é"}, {"region": 7}, {"region": nil},
		{"region": []int{1}}, {"region": strings.Repeat("x", 101)}, {"region": "other"}, {"else": "eu"}, {}} {
		list = append(list, object{"type": "usage", "eventId": fmt.Sprint("grouped-", n), "feature": "grouped", "amount": 1 << n,
			"timestamp": hour.Format(time.RFC3339), "metadata": metadata})
	}
	w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": list}, nil, http.StatusAccepted)
}

// changeOf is a correction of usage to an amount, or a retraction.
func changeOf(kind, feature, id, ref string, amount int) object {
	o := object{"type": kind, "eventId": id, "feature": feature, "correctionRef": ref, "timestamp": time.Now().UTC().Format(time.RFC3339),
		"metadata": object{"region": "us"}}
	if kind == "correction" {
		o["amount"] = amount
	}
	return o
}

// sendCorrections corrects and retracts usage of every kind that sendGroups and limitedUsage have sent, and new usage. A correction is
// sent twice, and once with another amount.
func sendCorrections(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	post := func(list ...object) {
		w.t.Helper()
		w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": list}, nil, http.StatusAccepted)
	}
	first := changeOf("correction", "api_calls", "corrected-1", "correctable", 70)
	usage := object{"eventId": "correctable", "feature": "api_calls", "amount": 40, "timestamp": first["timestamp"]}
	post(usage, first, changeOf("correction", "grouped", "regrouped", "grouped-0", 1000))
	post(first, changeOf("correction", "api_calls", "corrected-2", "correctable", 0), changeOf("retraction", "grouped", "ungrouped",
		"grouped-6", 0))
	post(changeOf("retraction", "api_calls", "retracted", "correctable", 0))
	first["amount"] = 71
	post(first)
	correctLimited(w, at, x)
}

// correctLimited corrects and retracts usage that limitedUsage has sent.
func correctLimited(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": []object{
		changeOf("correction", "calls", "less", "consumed0", 4), changeOf("retraction", "calls", "back", "part-usage", 0)}}, nil,
		http.StatusAccepted)
}

// limitedUsage sends every kind of request about the tenant's limit of calls: amounts are consumed, and reservations end in each way. The
// last commit brings the account above its limit of 1000.
func limitedUsage(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	key, path := w.keyOf(at, x, "entitlements:reserve", "entitlements:read"), "/api/v1/entitlements/calls"
	post := func(to string, in object, want int) {
		w.t.Helper()
		w.ask(key, http.MethodPost, at, path+to, in, nil, want)
	}
	hold := func(id string, amount, seconds int) {
		w.t.Helper()
		post("/reservations", object{"reservationId": id, "amount": amount, "ttlSeconds": seconds}, http.StatusCreated)
	}
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/thresholds", object{"feature": "calls", "amount": 5}, nil,
		http.StatusCreated)
	hold("expires", 5, 1)
	for n := range 3 {
		post("/consume", object{"eventId": fmt.Sprint("consumed", n), "amount": 10 + n}, http.StatusOK)
	}
	hold("part", 100, 60)
	post("/reservations/part/extend", object{"ttlSeconds": 120}, http.StatusOK)
	post("/reservations/part/commit", object{"eventId": "part-usage", "amount": 40}, http.StatusOK)
	hold("released", 20, 60)
	w.ask(key, http.MethodDelete, at, path+"/reservations/released", nil, nil, http.StatusOK)
	hold("stays", 7, 3600)
	hold("more", 50, 60)
	post("/reservations/more/commit", object{"eventId": "more-usage", "amount": 2000, "overage": "record"}, http.StatusOK)
	within(w.t, "the time of a reservation is over", func(ctx context.Context) (bool, string) {
		var r struct{ State string }
		err := w.get(ctx, key, at, path+"/reservations/expires", &r)
		return r.State == "EXPIRED", fmt.Sprint(r.State, " ", err)
	})
}

// hooksAllowed lets the endpoints of webhooks be on this machine.
const hooksAllowed = "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8"

// sendWebhooks gives a tenant a webhook of its closed periods and adjustments, whose endpoint accepts the second attempt.
func sendWebhooks(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	var refused bool
	endpoint := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		if !refused {
			refused = true
			answer.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	w.t.Cleanup(func() { endpoint.CloseClientConnections(); endpoint.Close() })
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/webhooks",
		object{"url": endpoint.URL, "events": []string{"period.closed",
			"adjustment.pending"}}, nil, http.StatusCreated)
}

// delivered waits until all deliveries of webhooks have ended.
func delivered(w *deployment) {
	w.t.Helper()
	within(w.t, "the deliveries of webhooks have ended", func(ctx context.Context) (bool, string) {
		var waiting, behind, all int64
		err := w.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM webhook_deliveries WHERE state = 'PENDING'), (SELECT count(*)
			FROM webhooks w
 JOIN log_heads h USING (partition)
 WHERE w.status = 'ENABLED' AND w.cursor < h.topic_positions[7]), (SELECT count(*) FROM webhook_deliveries)`).Scan(&waiting, &behind, &all)
		return err == nil && waiting+behind == 0, fmt.Sprintf("%d of %d wait, %d webhooks are behind: %v", waiting, all, behind, err)
	})
}

// offboard ends a tenant.
func offboard(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	path := "/api/v1/tenants/" + x.id + "/offboard"
	w.ask(w.operator, http.MethodPost, at, path, object{"reason": "a test"}, nil, http.StatusAccepted)
	within(w.t, "the tenant is archived", func(ctx context.Context) (bool, string) {
		var o struct{ State, Step string }
		err := w.get(ctx, w.operator, at, path, &o)
		return o.State == "ARCHIVED", fmt.Sprintf("%+v %v", o, err)
	})
}

// definePrice defines a price with tiers, and changes it.
func definePrice(w *deployment, at *instance) {
	w.t.Helper()
	for n, status := range []int{http.StatusCreated, http.StatusOK} {
		w.ask(w.operator, http.MethodPut, at, "/api/v1/prices/tiered", object{"name": "Tiered", "currency": "EUR", "model": "graduated",
			"tiers": []object{{"upTo": 10, "microUnits": 3000, "flatMicroUnits": 5 + n}, {"upTo": nil, "microUnits": 2000}}}, nil, status)
	}
}

// periodBody has members of the answer about a period.
type periodBody struct {
	State       string
	Snapshot    int
	FiguresHash string
	Lines       []struct {
		Feature      string
		Unreconciled int64
	}
}

// closePeriod closes a period of a tenant, and waits for its figures.
func closePeriod(w *deployment, at *instance, x *tenant, period string) (closed periodBody) {
	w.t.Helper()
	path := "/api/v1/tenants/" + x.id + "/periods/" + period
	w.ask(w.operator, http.MethodPost, at, path+"/close", object{"reason": "a test", "early": true}, nil, http.StatusAccepted)
	within(w.t, "the period is closed", func(ctx context.Context) (bool, string) {
		err := w.get(ctx, w.operator, at, path, &closed)
		return closed.State == "CLOSED", fmt.Sprintf("%+v %v", closed, err)
	})
	return closed
}

// closeAndAdjust closes the present month of a tenant with limitedUsage and sendGroups. Late events of every kind become adjustments,
// which are decided in every way. The month is reopened and closed again, and one more event is late.
func closeAndAdjust(w *deployment, at *instance, x *tenant) {
	w.t.Helper()
	month := time.Now().UTC().Format("2006-01")
	tenant, post := "/api/v1/tenants/"+x.id, func(key, path string, in object, want int) {
		w.t.Helper()
		w.ask(key, http.MethodPost, at, path, in, nil, want)
	}
	closePeriod(w, at, x, month)
	refused := w.ingest(at, x, "rejected", events("too-late", 1, "api_calls")...)
	if refused[0].Code != "period_closed" {
		w.t.Errorf("usage of a closed period was answered %+v", refused)
	}
	w.ask(w.operator, http.MethodPatch, at, tenant, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
	w.ingest(at, x, "accepted", events("late", 2, "api_calls")...)
	post(x.key, "/api/v1/usage/events", object{"events": []object{changeOf("correction", "grouped", "late-fix", "grouped-1", 100),
		changeOf("retraction", "grouped", "late-back", "grouped-2", 0)}}, http.StatusAccepted)
	post(w.keyOf(at, x, "entitlements:reserve"), "/api/v1/entitlements/calls/reservations/stays/commit", object{"eventId": "late-commit",
		"amount": 6}, http.StatusOK)
	w.drain()
	var page struct {
		Data []struct{ ID, Kind, Position string }
	}
	w.ask(w.operator, http.MethodGet, at, "/api/v1/adjustments?tenantId="+x.id, nil, &page, http.StatusOK)
	of := map[string]string{}
	for _, a := range page.Data {
		of[a.Kind] = a.ID
	}
	if len(page.Data) != 5 || len(of) != 4 {
		w.t.Fatalf("the late events are the adjustments %+v", page.Data)
	}
	post(w.operator, "/api/v1/adjustments/"+of["LATE_COMMIT"]+"/approve", object{"reason": "agreed"}, http.StatusOK)
	post(w.operator, "/api/v1/adjustments/"+of["RETRACTION"]+"/waive", object{"reason": "too small"}, http.StatusOK)
	post(w.operator, "/api/v1/adjustments/decide", object{"tenantId": x.id, "periodKey": month, "kind": "LATE_USAGE",
		"upTo": page.Data[len(page.Data)-1].Position, "decision": "approve", "reason": "all late usage"}, http.StatusOK)
	post(w.operator, tenant+"/periods/"+month+"/reopen", object{"reason": "once more"}, http.StatusOK)
	again := closePeriod(w, at, x, month)
	w.ingest(at, x, "accepted", events("later", 1, "api_calls")...)
	w.drain()
	var last periodBody
	w.ask(w.operator, http.MethodGet, at, tenant+"/periods/"+month, nil, &last, http.StatusOK)
	if last.Snapshot != 2 || last.FiguresHash != again.FiguresHash {
		w.t.Errorf("after late usage the period is %+v, before %+v", last, again)
	}
	for _, l := range last.Lines {
		if l.Unreconciled != 0 {
			w.t.Errorf("%s has the unreconciled amount %d", l.Feature, l.Unreconciled)
		}
	}
}

// run executes statements as the superuser.
func (w *deployment) run(statements ...string) {
	w.t.Helper()
	for _, s := range statements {
		if _, err := w.sql.Exec(w.t.Context(), s); err != nil {
			w.t.Fatalf("%v: %s", err, s)
		}
	}
}
