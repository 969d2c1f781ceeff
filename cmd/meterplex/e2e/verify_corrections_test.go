package e2e

import (
	"fmt"
	"net/http"
	"time"
)

// changeOf is a correction of usage to an amount, or a retraction.
func changeOf(kind, feature, id, ref string, amount int) object {
	o := object{"type": kind, "eventId": id, "feature": feature, "correctionRef": ref, "timestamp": time.Now().UTC().Format(time.RFC3339), "metadata": object{"region": "us"}}
	if kind == "correction" {
		o["amount"] = amount
	}
	return o
}

// sendCorrections corrects and retracts usage of every kind that sendGroups and limitedUsage have sent, and new usage. A correction is
// sent twice, and once with another amount.
func (w *deployment) sendCorrections(at *instance, x *tenant) {
	w.t.Helper()
	post := func(list ...object) {
		w.t.Helper()
		w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": list}, nil, http.StatusAccepted)
	}
	first := changeOf("correction", "api_calls", "corrected-1", "correctable", 70)
	usage := object{"eventId": "correctable", "feature": "api_calls", "amount": 40, "timestamp": first["timestamp"]}
	post(usage, first, changeOf("correction", "grouped", "regrouped", "grouped-0", 1000))
	post(first, changeOf("correction", "api_calls", "corrected-2", "correctable", 0), changeOf("retraction", "grouped", "ungrouped", "grouped-6", 0))
	post(changeOf("retraction", "api_calls", "retracted", "correctable", 0))
	first["amount"] = 71
	post(first)
	w.correctLimited(at, x)
}

// correctLimited corrects and retracts usage that limitedUsage has sent.
func (w *deployment) correctLimited(at *instance, x *tenant) {
	w.t.Helper()
	w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": []object{
		changeOf("correction", "calls", "less", "consumed0", 4), changeOf("retraction", "calls", "back", "part-usage", 0)}}, nil, http.StatusAccepted)
}

// plantsInCorrections returns plants in the verdicts and the table of a partition with sendCorrections.
func (w *deployment) plantsInCorrections(p int) []planted {
	const corrections, contents = "P5 each correction is counted once, by its target, and none after a retraction", "P3 each verdict matches its recorded event"
	at := func(id string) int64 {
		return w.number(`SELECT l.position FROM event_log_rows l JOIN event_log_rows r ON r.partition = l.partition AND r.tenant_id = l.tenant_id AND l.dedupe_key = 'v/' || r.position
 WHERE r.partition = $1 AND r.dedupe_key = 'u/' || $2`, p, id)
	}
	of := func(id string) int64 {
		return w.number(`SELECT position FROM event_log_rows WHERE partition = $1 AND dedupe_key = 'u/' || $2`, p, id)
	}
	// The log stores a verdict on a correction as an array: its third member is the event's id, its ninth the amount before.
	row := fmt.Sprintf(` WHERE position = %d AND target = %d`, at("corrected-2"), of("correctable"))
	return []planted{
		rewritten(corrections, atPosition(p, at("corrected-1")), "8", "41"), // the target has 40
		rewritten(corrections, atPosition(p, at("retracted")), "8", "1"),
		rewritten(contents, atPosition(p, at("corrected-2")), "2", `"told"`),
		changed(corrections, "usage_corrections", row, "after = after + 1", "after = after - 1"),
		gone(corrections, "usage_corrections", row),
		{check: corrections, do: []string{`INSERT INTO usage_corrections SELECT tenant_id, target, n + 7, cause, position, kind, before, after FROM usage_corrections` + row},
			undo: []string{`DELETE FROM usage_corrections WHERE n > 7`}},
	}
}
