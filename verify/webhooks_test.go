package verify

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const topicNotices = 8

// hookTables are the rows of a webhook and of its deliveries.
type hookTables struct {
	hook       hook
	status     string
	replay     int64
	has        hookCounts
	deliveries []hookDelivery
}

// hookWorld is a log with a webhook and its tables. Behind its positions:
//
//	1  a crossing before the webhook
//	2  the webhook selects crossings
//	3  a crossing
//	4  a failed push
//	5  the webhook is disabled
//	6  a crossing
//	7  the webhook is enabled
//	8  a crossing
//	9  the webhook selects failed pushes, too
//	10 a failed push
//	11 a crossing, behind the cursor
//
// The crossing at 6 was sent by a replay.
func hookWorld() ([]*row, *hookTables) {
	id := idOf(2)
	change := func(at int64, status, types string) *row {
		return event(at, webhookChanged, topicNotices, fmt.Sprint("e/", at), fmt.Sprintf(`{"id":%q,"events":[%s],"status":%q}`, id, types,
			status))
	}
	crossed := func(at int64) *row { return event(at, thresholdCrossed, topicNotices, fmt.Sprint("n/", at), `{}`) }
	const one, two = `"threshold.crossed"`, `"push.failed","threshold.crossed"`
	log := []*row{crossed(1), change(2, "ENABLED", one), crossed(3), event(4, pushFailed, 7, "b/4", `{}`), change(5, "DISABLED", one),
		crossed(6), change(7, "ENABLED", one),
		crossed(8), change(9, "ENABLED", two), event(10, pushFailed, 7, "b/10", `{}`), crossed(11)}
	for _, r := range log {
		r.recorded = time.Now().UnixMicro() - databaseEpoch
	}
	t := &hookTables{hook: hook{id: id, cursor: 10}, status: "ENABLED", replay: 6, has: hookCounts{secrets: 1}}
	sent := func(at int64, kind, state string, statuses ...int) {
		d := hookDelivery{id: idOf(100 + at), webhook: id, event: idOf(at), kind: kind, state: state, position: at, attempts: len(statuses),
			sent: len(statuses), statuses: statuses, atID: idOf(at)}
		for n := range statuses {
			d.numbers = append(d.numbers, n+1)
		}
		t.deliveries = append(t.deliveries, d)
	}
	sent(3, "threshold.crossed", "DELIVERED", -500, 204)
	sent(6, "threshold.crossed", "FAILED", -500)
	sent(8, "threshold.crossed", "PENDING")
	sent(10, "push.failed", "DELIVERED", 200)
	t.deliveries = append(t.deliveries, hookDelivery{id: idOf(99), webhook: id, event: idOf(98), kind: webhookTest, state: "PENDING"})
	return log, t
}

func readHooks(log []*row, t *hookTables) *tally {
	x := newTestPass(stateAt(int64(len(log))))
	subjects := map[int64]int16{}
	for _, r := range log {
		x.addWebhook(r, nil, nil)
		subjects[r.position] = r.subject
	}
	if t.has.secrets >= 0 {
		x.compareWebhook(&t.hook, t.status, t.replay, t.has)
	}
	for _, d := range t.deliveries {
		d.atSubject = subjects[d.position]
		x.webhooks.n++
		x.compareDelivery(&d)
		x.checkAttempts(&d)
	}
	x.missingDeliveries()
	return x.webhooks
}

func TestDeliveriesOfWebhooksFollowFromTheLog(t *testing.T) {
	if r := readHooks(hookWorld()).result(); r.Holds == nil || !*r.Holds || r.Figures != "5 deliveries" {
		t.Errorf("%+v", r)
	}
	// An event of which a later version selects the type no more may have a delivery, but need not. One that ended long ago has no delivery
	// any more.
	log, tables := hookWorld()
	log[8].body = []byte(`{"id":"` + idOf(2).String() + `","events":["push.failed"],"status":"ENABLED"}`)
	log[9].recorded = time.Now().Add(-90*24*time.Hour).UnixMicro() - databaseEpoch
	tables.deliveries = slices.Delete(tables.deliveries, 2, 4)
	if r := readHooks(log, tables).result(); r.Holds == nil || !*r.Holds {
		t.Errorf("%+v", r)
	}
}

func TestFaultsInDeliveriesAreReported(t *testing.T) {
	for fault, change := range map[string]func(log []*row, x *hookTables){
		"is not in the log":              func(_ []*row, x *hookTables) { x.hook.id = idOf(77) },
		"of the log is not in the table": func(_ []*row, x *hookTables) { x.has.secrets = -1 },
		"has considered events up to 12": func(_ []*row, x *hookTables) { x.hook.cursor = 12 },
		"replays up to 11":               func(_ []*row, x *hookTables) { x.replay = 11 },
		"and has 0 secrets":              func(_ []*row, x *hookTables) { x.has.secrets = 0 },
		"its tenant is archived: true":   func(_ []*row, x *hookTables) { x.hook.archived = true },
		"of an archived tenant is enabled": func(_ []*row, x *hookTables) {
			x.hook.archived, x.has.secrets = true, 0
		},
		"which its tenant does not have": func(_ []*row, x *hookTables) {
			x.deliveries[0].tenant = idOf(5)
		},
		"has two deliveries of the event": func(_ []*row, x *hookTables) {
			x.deliveries = append(x.deliveries, x.deliveries[0])
		},
		`of "threshold.crossed" has no event`: func(_ []*row, x *hookTables) { x.deliveries[0].position = 0 },
		"at 0-3; there is":                    func(_ []*row, x *hookTables) { x.deliveries[0].atID = idOf(4) },
		"there is " + idOf(6).String() + " of " + idOf(9).String(): func(_ []*row, x *hookTables) {
			x.deliveries[1].atTenant = idOf(9)
		},
		`has the type "push.failed"; the event's is "threshold.crossed"`: func(_ []*row, x *hookTables) {
			x.deliveries[0].kind = "push.failed"
		},
		"selects it: false": func(log []*row, _ *hookTables) {
			for _, n := range []int{1, 4, 6, 8} {
				log[n].body = []byte(fmt.Sprintf(`{"id":%q,"events":["push.failed"],"status":"ENABLED"}`, idOf(2)))
			}
		},
		"has considered 0-10 (push.failed), and has no delivery": func(_ []*row, x *hookTables) {
			x.deliveries = slices.Delete(x.deliveries, 3, 4)
		},
		"has considered 0-8 (threshold.crossed)": func(_ []*row, x *hookTables) {
			x.deliveries = slices.Delete(x.deliveries, 2, 3)
		},
		"has considered 0-11 (threshold.crossed)": func(_ []*row, x *hookTables) { x.hook.cursor = 11 },
		"its attempts are [1 3]":                  func(_ []*row, x *hookTables) { x.deliveries[0].numbers = []int{1, 3} },
		"its attempts are [2 1]":                  func(_ []*row, x *hookTables) { x.deliveries[0].numbers = []int{2, 1} },
		"was sent 3 times":                        func(_ []*row, x *hookTables) { x.deliveries[0].sent = 3 },
		"2 since it was repeated":                 func(_ []*row, x *hookTables) { x.deliveries[3].attempts = 2 },
		"status 500 whose error":                  func(_ []*row, x *hookTables) { x.deliveries[0].statuses[0] = 500 },
		"no status 2xx: [-500 -503]":              func(_ []*row, x *hookTables) { x.deliveries[0].statuses[1] = -503 },
		"no status 2xx: []":                       func(_ []*row, x *hookTables) { x.deliveries[2].state = "DELIVERED" },
		"changes the webhook":                     func(log []*row, _ *hookTables) { log[4].tenant = idOf(3) },
	} {
		log, tables := hookWorld()
		change(log, tables)
		requireFault(t, fault, readHooks(log, tables), fault)
	}
	log, tables := disabledHookWorld()
	tables.has.pending, tables.has.failed = 2, failedInChange-1
	requireFault(t, "disabled", readHooks(log, tables), "2 of its deliveries wait")
}

// disabledHookWorld is hookWorld with one more change, which disables the webhook.
func disabledHookWorld() ([]*row, *hookTables) {
	log, tables := hookWorld()
	tables.status = "DISABLED"
	return append(log, event(12, webhookChanged, topicNotices, "e/12",
		fmt.Sprintf(`{"id":%q,"events":["push.failed","threshold.crossed"],"status":"DISABLED"}`, idOf(2)))), tables
}

// The service lets the deliveries behind the first ones fail after the change that disabled their webhook.
func TestDeliveriesOfALongQueueMayWaitAfterTheirWebhookIsDisabled(t *testing.T) {
	log, tables := disabledHookWorld()
	tables.has.pending, tables.has.failed = 100_000, failedInChange
	if r := readHooks(log, tables).result(); r.Holds == nil || !*r.Holds {
		t.Errorf("%+v", r)
	}
}

// A pending adjustment is the event of its id; one that was void from its start is no event.
func TestPendingAdjustmentsHaveDeliveries(t *testing.T) {
	read := func(deliveries ...hookDelivery) *tally {
		x := newTestPass(stateAt(30))
		log := closedLog()
		log[0] = event(1, webhookChanged, topicNotices, "e/1", fmt.Sprintf(`{"id":%q,"events":["adjustment.pending"],"status":"ENABLED"}`,
			idOf(1)))
		for _, r := range log {
			r.recorded = time.Now().UnixMicro() - databaseEpoch
		}
		for id, a := range map[int64]adjustmentRow{13: {id: idOf(13), position: 13, state: "APPROVED", decided: 20},
			15: {id: idOf(15), position: 15, state: "VOID", decided: 14}} {
			x.periods.adjusted.byID[a.id], x.periods.adjusted.byPosition[id] = &adjustment{adjustmentRow: a}, &adjustment{adjustmentRow: a}
		}
		for _, r := range log {
			x.addWebhook(r, nil, nil)
		}
		x.compareWebhook(&hook{id: idOf(1), cursor: 26}, "ENABLED", 0, hookCounts{secrets: 1})
		for _, d := range deliveries {
			x.compareDelivery(&d)
		}
		x.missingDeliveries()
		return x.webhooks
	}
	d := hookDelivery{webhook: idOf(1), event: idOf(13), kind: adjustmentPending, position: 13, atID: idOf(13), atSubject: validated}
	if r := read(d).result(); !*r.Holds {
		t.Errorf("%+v", r)
	}
	requireFault(t, "without a delivery", read(), "has considered 0-13 (adjustment.pending)")
	d.event, d.atID = idOf(19), idOf(19)
	requireFault(t, "of a verdict in time", read(d), `the event's is ""`)
}
