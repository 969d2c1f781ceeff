package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	hookEnabled       = "ENABLED"
	adjustmentPending = "adjustment.pending"
	webhookTest       = "webhook.test"
	usageRefused      = "usage.refused"

	// deliveriesListed is the time since its recording for which the table has the delivery of an event: the service keeps it for 90 days
	// since it ended.
	deliveriesListed = 89 * 24 * time.Hour
	// attemptsListed is the number of last attempts that the table has.
	attemptsListed = 20
	// failedInChange is the number of waiting deliveries that a change which disables or removes a webhook lets fail itself. The others
	// fail later.
	failedInChange = 100
)

// hooks are the webhooks of a partition, with the events that can be sent to them.
type hooks struct {
	of       map[uuid.UUID]*hook
	ofTenant map[uuid.UUID][]*hook
	events   []hookEvent
	recorded map[int64]time.Time // of adjustments, by position
}

// hook is a webhook with its versions in the log, in their order.
type hook struct {
	id, tenant uuid.UUID
	cursor     int64
	versions   []hookVersion
	delivered  map[uuid.UUID]bool // events that have a delivery
	inTable    bool
	archived   bool // its tenant
}

type hookVersion struct {
	position int64
	status   string
	types    []string
}

// hookEvent is an event that a webhook can select.
type hookEvent struct {
	id, tenant uuid.UUID
	position   int64
	kind       string
	recorded   time.Time
}

func newHooks() hooks {
	return hooks{of: map[uuid.UUID]*hook{}, ofTenant: map[uuid.UUID][]*hook{}, recorded: map[int64]time.Time{}}
}

// typeOf returns the type of the events of a subject; "" if no webhook selects it.
func typeOf(subject int16) string {
	return map[int16]string{periodClosed: "period.closed", thresholdCrossed: "threshold.crossed", reservationExpired: "reservation.expired",
		pushFailed:   "push.failed",
		refusalsSeen: usageRefused}[subject]
}

// addWebhook follows the webhooks, and notes the events of tenants that have one.
func (x *pass) addWebhook(r *row, _ *content, _ error) {
	if r.subject == webhookChanged {
		var c struct {
			ID     uuid.UUID
			Status string
			Events []string
		}
		if err := json.Unmarshal(r.body, &c); err != nil {
			x.webhooks.fault("%s cannot be read: %v", x.at(r.position), err)
			return
		}
		h := x.hooks.of[c.ID]
		if h == nil {
			h = &hook{id: c.ID, tenant: r.tenant, delivered: map[uuid.UUID]bool{}}
			x.hooks.of[h.id] = h
			x.hooks.ofTenant[h.tenant] = append(x.hooks.ofTenant[h.tenant], h)
		}
		x.webhooks.expect(h.tenant == r.tenant, "%s changes the webhook %s of %s", x.at(r.position), h.id, h.tenant)
		h.versions = append(h.versions, hookVersion{r.position, c.Status, c.Events})
		return
	}
	if x.hooks.ofTenant[r.tenant] == nil {
		return
	}
	if x.periods.adjusted.byPosition[r.position] != nil {
		x.hooks.recorded[r.position] = moment(r.recorded)
	}
	if kind := typeOf(r.subject); kind == usageRefused {
		x.addRefusals(r)
	} else if kind != "" {
		x.hooks.events = append(x.hooks.events, hookEvent{r.id, r.tenant, r.position, kind, moment(r.recorded)})
	}
}

// addRefusals notes the groups of an event of refusals, each of which is sent once a minute.
func (x *pass) addRefusals(r *row) {
	var seen struct {
		From   time.Time
		Groups []struct{ Code, Feature string }
	}
	if err := json.Unmarshal(r.body, &seen); err != nil {
		x.webhooks.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	for _, g := range seen.Groups {
		id := uuid.NewSHA1(r.tenant, []byte(fmt.Sprintf("usage.refused %s %s %d", g.Code, g.Feature, seen.From.Unix()/60)))
		x.hooks.events = append(x.hooks.events, hookEvent{id, r.tenant, r.position, usageRefused, moment(r.recorded)})
	}
}

// selects reports whether a version from that in force at a position on selects a type: it may be sent then, at once or by a replay.
func (h *hook) selects(kind string, position int64) bool {
	for n, v := range h.versions {
		replaced := n+1 < len(h.versions) && h.versions[n+1].position < position
		if !replaced && v.status == hookEnabled && slices.Contains(v.types, kind) {
			return true
		}
	}
	return false
}

// owes reports whether an event must have a delivery: the cursor has passed it, and all versions since then select its type. A webhook that
// is enabled begins behind the change.
func (h *hook) owes(e *hookEvent) bool {
	enabled, before := int64(0), ""
	for _, v := range h.versions {
		if v.status == hookEnabled && before != hookEnabled {
			enabled = v.position
		}
		before = v.status
	}
	if e.position <= enabled || enabled == 0 || e.position > h.cursor {
		return false
	}
	for n, v := range h.versions {
		if replaced := n+1 < len(h.versions) && h.versions[n+1].position < e.position; !replaced && !slices.Contains(v.types, e.kind) {
			return false
		}
	}
	return true
}

const (
	webhooksSQL = `SELECT id, tenant_id, status, cursor, replay_until, coalesce((SELECT t.status = 'ARCHIVED' FROM tenants t
		WHERE t.id = w.tenant_id), false), (SELECT count(*) FROM webhook_secrets s WHERE s.webhook_id = w.id),
 (SELECT count(*) FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'PENDING'),
 (SELECT count(*) FROM (SELECT FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'FAILED' LIMIT 100) f) FROM webhooks w
 WHERE partition = $1`

	hookDeliveriesSQL = `SELECT d.id, d.webhook_id, d.tenant_id, d.event_id, d.type, coalesce(d.position, 0), d.state, d.attempts, d.sent,
		coalesce(l.event_id, d.webhook_id), coalesce(l.tenant_id, d.webhook_id),
 coalesce(l.subject, 0), ARRAY(SELECT a.n FROM webhook_attempts a WHERE a.delivery_id = d.id ORDER BY a.at, a.n),
 ARRAY(SELECT CASE WHEN a.error = '' THEN a.status ELSE -a.status END
  FROM webhook_attempts a WHERE a.delivery_id = d.id ORDER BY a.at, a.n)
 FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id LEFT JOIN event_log_rows l ON l.partition = w.partition
 AND l.position = d.position WHERE w.partition = $1`
)

// hookCounts are the numbers of rows that a webhook has; failed counts up to failedInChange.
type hookCounts struct{ secrets, pending, failed int64 }

// hookDelivery is a row of the table, with the event at its position and its attempts.
type hookDelivery struct {
	id, webhook, tenant, event uuid.UUID
	kind, state                string
	position                   int64
	attempts, sent             int
	atID, atTenant             uuid.UUID
	atSubject                  int16
	numbers, statuses          []int // a status is negative if the attempt has an error
}

// compareWebhooks compares the webhooks and their deliveries with the log.
func (x *pass) compareWebhooks(ctx context.Context, tx pgx.Tx) error {
	var w hook
	var status string
	var replay int64
	var has hookCounts
	err := each(ctx, tx, webhooksSQL, []any{x.p}, []any{&w.id, &w.tenant, &status, &w.cursor, &replay, &w.archived, &has.secrets,
		&has.pending, &has.failed}, func() error {
		x.compareWebhook(&w, status, replay, has)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the webhooks: %w", err)
	}
	var d hookDelivery
	into := []any{&d.id, &d.webhook, &d.tenant, &d.event, &d.kind, &d.position, &d.state, &d.attempts, &d.sent, &d.atID, &d.atTenant,
		&d.atSubject, &d.numbers, &d.statuses}
	err = each(ctx, tx, hookDeliveriesSQL, []any{x.p}, into, func() error {
		x.webhooks.n++
		x.compareDelivery(&d)
		x.checkAttempts(&d)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the deliveries of webhooks: %w", err)
	}
	x.missingDeliveries()
	return nil
}

// compareWebhook compares the state of a webhook's deliveries with the log. The other members of its row are compared with those of the
// catalogue.
func (x *pass) compareWebhook(is *hook, status string, replay int64, has hookCounts) {
	h := x.hooks.of[is.id]
	if h == nil || h.tenant != is.tenant {
		x.webhooks.fault("the webhook %s of %s is not in the log", is.id, is.tenant)
		return
	}
	h.cursor, h.inTable = is.cursor, true
	x.webhooks.expect(is.cursor <= x.head && replay <= is.cursor,
		"the webhook %s has considered events up to %d and replays up to %d, the head is %d", is.id, is.cursor, replay, x.head)
	// The change that ended a webhook let all its waiting deliveries fail, or the first of many; the service lets the others fail soon.
	x.webhooks.expect(status == hookEnabled || has.pending == 0 || has.failed >= failedInChange,
		"the webhook %s is %s, and %d of its deliveries wait", is.id, status, has.pending)
	x.webhooks.expect((has.secrets > 0) == (status != "REMOVED" && !is.archived),
		"the webhook %s is %s, and has %d secrets; its tenant is archived: %v", is.id, status, has.secrets, is.archived)
	x.webhooks.expect(!is.archived || status != hookEnabled, "the webhook %s of an archived tenant is enabled", is.id)
}

// compareDelivery compares a delivery with its event and its webhook.
func (x *pass) compareDelivery(d *hookDelivery) {
	h := x.hooks.of[d.webhook]
	if h == nil || h.tenant != d.tenant {
		x.webhooks.fault("the delivery %s of %s belongs to the webhook %s, which its tenant does not have", d.id, d.tenant, d.webhook)
		return
	}
	x.webhooks.expect(!h.delivered[d.event], "the webhook %s has two deliveries of the event %s", h.id, d.event)
	h.delivered[d.event] = true
	if d.position == 0 {
		x.webhooks.expect(d.kind == webhookTest, "the delivery %s of %.40q has no event", d.id, d.kind)
		return
	}
	// The delivery of a group of refusals has an id of its own.
	x.webhooks.expect((d.atID == d.event || d.atSubject == refusalsSeen) && d.atTenant == d.tenant,
		"the delivery %s is of the event %s of %s at %s; there is %s of %s", d.id, d.event, d.tenant, x.at(d.position), d.atID, d.atTenant)
	kind := typeOf(d.atSubject)
	if x.periods.adjusted.byID[d.event] != nil {
		kind = adjustmentPending
	}
	x.webhooks.expect(kind == d.kind && h.selects(d.kind, d.position),
		"the delivery %s of the event at %s has the type %.40q; the event's is %.40q, and the webhook %s selects it: %v", d.id,
		x.at(d.position), d.kind, kind, h.id, h.selects(d.kind, d.position))
}

// checkAttempts checks that the attempts of a delivery are counted without a gap, in their order, and that a delivered one was accepted.
func (x *pass) checkAttempts(d *hookDelivery) {
	counted := len(d.numbers) == min(d.sent, attemptsListed) && d.attempts <= d.sent
	for i, n := range d.numbers {
		counted = counted && n == d.sent-len(d.numbers)+1+i
	}
	x.webhooks.expect(counted, "the delivery %s was sent %d times, %d since it was repeated; its attempts are %v", d.id, d.sent, d.attempts,
		d.numbers)
	for _, status := range d.statuses {
		x.webhooks.expect((status >= 200 && status <= 299) == (status > 0),
			"the delivery %s has an attempt with the status %d whose error says otherwise", d.id, max(status, -status))
	}
	accepted := len(d.statuses) > 0 && d.statuses[len(d.statuses)-1] > 0
	x.webhooks.expect(d.state != "DELIVERED" || accepted, "the delivery %s is DELIVERED, and its last attempt has no status 2xx: %v", d.id,
		d.statuses)
}

// missingDeliveries checks that each event which a webhook owes has a delivery. An adjustment that is void from its start was never
// pending.
func (x *pass) missingDeliveries() {
	all := x.hooks.events
	for _, a := range x.periods.adjusted.byID {
		if x.hooks.ofTenant[a.of.tenant] != nil && (a.decided == 0 || a.decided > a.position) {
			all = append(all, hookEvent{a.id, a.of.tenant, a.position, adjustmentPending, x.hooks.recorded[a.position]})
		}
	}
	listed := x.Now().Add(-deliveriesListed)
	for n := range all {
		e := &all[n]
		for _, h := range x.hooks.ofTenant[e.tenant] {
			x.webhooks.expect(h.delivered[e.id] || !h.owes(e) || e.recorded.Before(listed),
				"the webhook %s has considered %s (%s), and has no delivery of it", h.id, x.at(e.position), e.kind)
		}
	}
	for _, h := range x.hooks.of {
		x.webhooks.expect(h.inTable, "the webhook %s of the log is not in the table", h.id)
	}
}
