package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/internal/must"
)

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
func (w *deployment) closePeriod(at *instance, x *tenant, period string) (closed periodBody) {
	w.t.Helper()
	path := "/api/v1/tenants/" + x.id + "/periods/" + period
	w.ask(w.operator, http.MethodPost, at, path+"/close", object{"reason": "a test", "early": true}, nil, http.StatusAccepted)
	within(w.t, "the period is closed", func(ctx context.Context) (bool, string) {
		err := w.get(ctx, w.operator, at, path, &closed)
		return closed.State == "CLOSED", fmt.Sprintf("%+v %v", closed, err)
	})
	return closed
}

// closeAndAdjust closes the present month of a tenant with limitedUsage and sendGroups. Late events of every kind become adjustments, which are
// decided in every way. The month is reopened and closed again, and one more event is late.
func (w *deployment) closeAndAdjust(at *instance, x *tenant) {
	w.t.Helper()
	month := time.Now().UTC().Format("2006-01")
	tenant, post := "/api/v1/tenants/"+x.id, func(key, path string, in object, want int) {
		w.t.Helper()
		w.ask(key, http.MethodPost, at, path, in, nil, want)
	}
	w.closePeriod(at, x, month)
	refused := w.ingest(at, x, "rejected", events("too-late", 1, "api_calls")...)
	if refused[0].Code != "period_closed" {
		w.t.Errorf("usage of a closed period was answered %+v", refused)
	}
	w.ask(w.operator, http.MethodPatch, at, tenant, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
	w.ingest(at, x, "accepted", events("late", 2, "api_calls")...)
	post(x.key, "/api/v1/usage/events", object{"events": []object{changeOf("correction", "grouped", "late-fix", "grouped-1", 100), changeOf("retraction", "grouped", "late-back", "grouped-2", 0)}}, http.StatusAccepted)
	post(w.keyOf(at, x, "entitlements:reserve"), "/api/v1/entitlements/calls/reservations/stays/commit", object{"eventId": "late-commit", "amount": 6}, http.StatusOK)
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
	post(w.operator, "/api/v1/adjustments/decide", object{"tenantId": x.id, "periodKey": month, "kind": "LATE_USAGE", "upTo": page.Data[len(page.Data)-1].Position, "decision": "approve", "reason": "all late usage"}, http.StatusOK)
	post(w.operator, tenant+"/periods/"+month+"/reopen", object{"reason": "once more"}, http.StatusOK)
	again := w.closePeriod(at, x, month)
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

// plantsInPeriods returns plants in the closed period of a tenant with closeAndAdjust.
func (w *deployment) plantsInPeriods(p int, x *tenant) []planted {
	w.t.Helper()
	const figures, sums = "P8 each closed period has the figures that its events froze, with their hash", "P8 each frozen figure is the sum of the verdicts that were caused up to its cut"
	const adjustments, states = "P8 each late verdict is one adjustment, and each event counts in the frozen figure or as an adjustment", "P8 the states of adjustments follow from the decisions, reopenings and discards in the log"
	first := ` WHERE tenant_id = '` + x.id + `' AND snapshot = 1`
	line := first + ` AND feature = 'grouped'`
	commit := first + ` AND source_event_id = 'late-commit'`
	return []planted{
		changed(figures, "period_lines", line, "amount = amount + 1", "amount = amount - 1"),
		changed(figures, "period_snapshots", first, "figures_hash = 'x' || figures_hash", "figures_hash = substr(figures_hash, 2)"),
		changed(figures, "period_snapshots", first, "cut = cut - 1", "cut = cut + 1"),
		gone(figures, "period_lines", line),
		gone(figures, "period_snapshots", first),
		gone(figures, "period_changes", first+` AND change = 'reopened'`),
		w.wronglyFrozen(p, x, sums),
		changed(adjustments, "adjustments", commit, "amount = amount + 1", "amount = amount - 1"),
		changed(adjustments, "adjustments", commit, "kind = 'RETRY'", "kind = 'LATE_COMMIT'"),
		gone(adjustments, "adjustments", commit),
		{check: adjustments, do: []string{`INSERT INTO adjustments SELECT gen_random_uuid(), tenant_id, period_key, snapshot, feature, subscription_id, kind, amount, event_count, position, recorded + 1000000, source_event_id,
 rebuild_id, state, reason, decided FROM adjustments` + commit}, undo: []string{`DELETE FROM adjustments WHERE recorded > 1000000`}},
		changed(states, "adjustments", commit, "state = 'WAIVED'", "state = 'APPROVED'"),
		changed(states, "adjustments", commit, "decided = decided + 1", "decided = decided - 1"),
		changed(states, "adjustments", first+` AND source_event_id = 'late-fix'`, "state = 'PENDING'", "state = 'VOID'"),
		w.proposed(p, x),
	}
}

// wronglyFrozen freezes another figure in the first snapshot, with its hash, in the log and in the tables alike.
func (w *deployment) wronglyFrozen(p int, x *tenant, check string) planted {
	w.t.Helper()
	var frozen, closed int64
	var body []byte
	const read = `SELECT f.position, c.position, f.body FROM event_log_rows f JOIN event_log_rows c ON c.partition = f.partition AND c.tenant_id = f.tenant_id AND c.subject = 72 AND c.body ->> 'snapshot' = '1'
 WHERE f.partition = $1 AND f.tenant_id = $2 AND f.subject = 71 AND f.body ->> 'snapshot' = '1'`
	must.OK(w.t, w.sql.QueryRow(w.t.Context(), read, p, x.id).Scan(&frozen, &closed, &body))
	var c struct {
		PeriodKey string
		Lines     []struct {
			Feature, SubscriptionID, Amount string
			EventCount                      int64
		}
	}
	if err := json.Unmarshal(body, &c); err != nil || len(c.Lines) == 0 {
		w.t.Fatalf("the figures are %s: %v", body, err)
	}
	cut := w.number(`SELECT cut FROM period_snapshots WHERE tenant_id = $1 AND snapshot = 1`, x.id)
	var lines []string
	for n, l := range c.Lines {
		if n == 0 {
			l.Amount += "0"
		}
		lines = append(lines, fmt.Sprintf(`{"amount":%q,"eventCount":%d,"feature":%q,"subscriptionId":%q}`, l.Amount, l.EventCount, l.Feature, l.SubscriptionID))
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, `{"cut":"%d-%d","lines":[%s],"logic":"usage_aggregates/v1","periodKey":%q,"snapshot":1,"tenantId":%q}`, p, cut, strings.Join(lines, ","), c.PeriodKey, x.id)))
	first := ` WHERE tenant_id = '` + x.id + `' AND snapshot = 1`
	line := first + ` AND feature = '` + c.Lines[0].Feature + `' AND subscription_id = '` + c.Lines[0].SubscriptionID + `'`
	return planted{check: check, do: []string{
		fmt.Sprintf(`CREATE TABLE kept AS SELECT position, body FROM event_log_rows WHERE partition = %d AND position IN (%d, %d)`, p, frozen, closed),
		`CREATE TABLE kept_hash AS SELECT figures_hash FROM period_snapshots` + first,
		inLog(p, frozen, fmt.Sprintf(`body = jsonb_set(body::jsonb, '{lines,0,amount}', '"%s0"')::json`, c.Lines[0].Amount)),
		inLog(p, closed, fmt.Sprintf(`body = jsonb_set(body::jsonb, '{figuresHash}', '"%s"')::json`, hash)),
		`UPDATE period_lines SET amount = amount * 10` + line, `UPDATE period_snapshots SET figures_hash = '` + hash + `'` + first},
		undo: []string{inLog(p, frozen, fmt.Sprintf(`body = (SELECT body FROM kept WHERE position = %d)`, frozen)), inLog(p, closed, fmt.Sprintf(`body = (SELECT body FROM kept WHERE position = %d)`, closed)),
			`UPDATE period_lines SET amount = trunc(amount / 10)` + line, `UPDATE period_snapshots SET figures_hash = (SELECT figures_hash FROM kept_hash)` + first, `DROP TABLE kept`, `DROP TABLE kept_hash`}}
}

// proposed appends the proposal of a difference that no line has.
func (w *deployment) proposed(p int, x *tenant) planted {
	id := uuid.NewString()
	head := fmt.Sprintf(` WHERE partition = %d`, p)
	return planted{check: "P8 each figure of a closed period is its frozen figure and its adjustments", do: []string{
		fmt.Sprintf(`INSERT INTO event_log_rows SELECT h.position + 1, h.topic_positions[7], h.recorded_at, l.occurred_at, '%s', l.tenant_id, l.correlation_id, l.causation_id, h.epoch, l.origin, l.partition, 7, 74, 'j/planted', NULL,
 json_build_object('adjustmentId', '%s', 'periodKey', s.period_key, 'snapshot', 2, 'feature', s.feature, 'subscriptionId', s.subscription_id, 'kind', 'REBUILD', 'amount', '3', 'eventCount', 0, 'flip', 1), NULL
 FROM log_heads h JOIN period_lines s ON s.tenant_id = '%s' AND s.snapshot = 2 AND s.feature = 'grouped'
 CROSS JOIN LATERAL (SELECT * FROM event_log_rows l WHERE l.partition = h.partition AND l.tenant_id = s.tenant_id AND l.topic = 7 ORDER BY l.position DESC LIMIT 1) l
 WHERE h.partition = %d`, id, id, x.id, p),
		fmt.Sprintf(`INSERT INTO adjustments SELECT '%s', tenant_id, period_key, 2, feature, subscription_id, 'REBUILD', 3, 0, h.position + 1, h.position + 1, NULL, NULL, 'PENDING', NULL, NULL
 FROM period_lines s JOIN log_heads h ON h.partition = %d WHERE s.tenant_id = '%s' AND s.snapshot = 2 AND s.feature = 'grouped'`, id, p, x.id),
		`UPDATE log_heads SET position = position + 1, topic_positions[7] = position + 1` + head},
		undo: []string{`DELETE FROM event_log_rows WHERE dedupe_key = 'j/planted'`, `DELETE FROM adjustments WHERE id = '` + id + `'`,
			`UPDATE log_heads h SET position = position - 1, topic_positions[7] = (SELECT max(position) FROM event_log_rows l WHERE l.partition = h.partition AND topic = 7)` + head}}
}
