package verify

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

// Each grant is compared with the snapshot that was in force in its turn: that of the present subscription, or for enforced usage of
// an earlier time, without a present limit of its account, an earlier one.
func TestEachGrantHasTheSnapshotOfItsTurn(t *testing.T) {
	subscribed := func(id byte, status string, limit int, reset string) string {
		return fmt.Sprintf(
			`{"id":%q,"status":%q,"entitlements":[{"feature":"f","type":"QUOTA","limit":%d,"limitBehavior":"HARD","resetPeriod":%q}]}`,
			uuid.UUID{id}, status, limit, reset)
	}
	granted := func(by string, id byte, limit, used int) string {
		return fmt.Sprintf(
			`{"eventId":"e","feature":"f","amount":1,"timestamp":"2026-05-04T12:00:00Z","type":"usage","admitted":{"by":%q,"subscriptionId":%q,`+
				`"featureType":"QUOTA","periodKey":"2026-05","limit":%d,"used":%d,"held":0}}`,
			by, uuid.UUID{id}, limit, used)
	}
	const noSnapshot, beyond = "a snapshot that the log does not have", "is granted beyond the limit"
	for name, c := range map[string]struct{ before, after, grant, fault string }{
		"the present limit": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 7, "MONTHLY"),
			granted("consume", 1, 7, 1), ""},
		"an earlier limit": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 7, "MONTHLY"),
			granted("consume", 1, 5, 1), noSnapshot},
		"a cancelled subscription": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "CANCELLED", 5, "MONTHLY"),
			granted("consume", 1, 5, 1), noSnapshot},
		"an earlier subscription": {subscribed(1, "CANCELLED", 5, "MONTHLY"), subscribed(2, "TRIALING", 5, "MONTHLY"),
			granted("consume", 1, 5, 1), noSnapshot},
		"another period": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 5, "ANNUALLY"),
			granted("consume", 1, 5, 1), noSnapshot},
		"enforced by the present limit": {subscribed(1, "CANCELLED", 5, "MONTHLY"), subscribed(2, "ACTIVE", 7, "MONTHLY"),
			granted("enforce", 1, 7, 1), ""},
		"enforced by an earlier limit": {subscribed(1, "CANCELLED", 5, "MONTHLY"), subscribed(2, "ACTIVE", 7, "MONTHLY"),
			granted("enforce", 1, 5, 1), noSnapshot},
		"enforced without a present subscription": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "CANCELLED", 5, "MONTHLY"),
			granted("enforce", 1, 5, 1), ""},
		"enforced by the limit of another account": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 9, "ANNUALLY"),
			granted("enforce", 1, 5, 1), ""},
		"enforced by no limit": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 9, "ANNUALLY"),
			granted("enforce", 1, 6, 1), noSnapshot},
		"beyond the limit": {subscribed(1, "ACTIVE", 5, "MONTHLY"), subscribed(1, "ACTIVE", 0, "MONTHLY"),
			granted("consume", 1, 0, 1), beyond},
	} {
		x := newTestPass(stateAt(3))
		x.add(event(1, subscriptionCreated, 5, "e/1", c.before))
		x.add(event(2, subscriptionChanged, 5, "e/2", c.after))
		x.add(event(3, admitted, topicRaw, "u/e", c.grant))
		if c.fault == "" {
			if r := x.quotaGrants.result(); r.Holds == nil || !*r.Holds {
				t.Errorf("%s: %s", name, r.Figures)
			}
			continue
		}
		requireFault(t, name, x.quotaGrants, c.fault)
	}
}
