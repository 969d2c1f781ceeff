package verify

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// story is the events of one reservation, or several, of a feature with a HARD limit of 10.
type story struct {
	x    *pass
	next int64
}

func newStory() *story {
	x := newTestPass(stateAt(20, entitlements))
	y := &story{x: x, next: 1}
	y.limit(10)
	return y
}

func (y *story) add(subject, topic int16, key, body string, at time.Time) {
	r := event(y.next, subject, topic, key, body)
	r.tenant, r.occurred, r.recorded = uuid.UUID{1}, at.UnixMicro()-databaseEpoch, y.x.Now().UnixMicro()-databaseEpoch
	y.next++
	y.x.add(r)
}

func (y *story) limit(n int) {
	y.add(subscriptionChanged, 5, fmt.Sprint("e/", y.next),
		fmt.Sprintf(
			`{"id":%q,"status":"ACTIVE","entitlements":[{"feature":"f","type":"QUOTA","limit":%d,"limitBehavior":"HARD","resetPeriod":"MONTHLY"}]}`, uuid.UUID{1}, n), noon)
}

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// about adds an event about a reservation, whose time is over at noon.
func (y *story) about(subject int16, id string, amount, limit, used, held int, at time.Time) {
	key := "y/" + id
	if subject == reservationHeld {
		key = "h/" + id
	}
	y.add(subject, 9, key,
		fmt.Sprintf(
			`{"reservationId":%q,"feature":"f","periodKey":"2026-05","subscriptionId":%q,"featureType":"QUOTA","amount":%d,`+
				`"expiresAt":"2026-05-04T12:00:00Z","limit":%d,"used":"%d","held":"%d"}`,
			id, uuid.UUID{1}, amount, limit, used, held), at)
}

func (y *story) admit(by string, amount, limit, used, held int, more string) {
	y.add(admitted, topicRaw, "u/e",
		fmt.Sprintf(
			`{"eventId":"e","feature":"f","amount":%d,"timestamp":"2026-05-04T12:00:00Z","type":"usage","admitted":{"by":%q,"subscriptionId":%q,`+
				`"featureType":"QUOTA","periodKey":"2026-05","limit":%d,"used":"%d","held":"%d"%s}}`,
			amount, by, uuid.UUID{1}, limit, used, held, more), noon)
}

func (y *story) commit(id string, amount, heldAmount, limit, used, held int, more string) {
	y.admit("commit", amount, limit, used, held, fmt.Sprintf(`,"reservationId":%q,"heldAmount":%d%s`, id, heldAmount, more))
}

const overage = `,"overage":"record"`

// Correct lives of reservations violate no check, even if they bring the account above the limit.
func TestReservationsThatEndOnceHold(t *testing.T) {
	for name, tell := range map[string]func(y *story){
		"a part commit":  func(y *story) { y.about(60, "a", 7, 10, 0, 7, noon); y.commit("a", 3, 7, 10, 3, 0, "") },
		"an overage":     func(y *story) { y.about(60, "a", 7, 10, 0, 7, noon); y.commit("a", 30, 7, 10, 30, 0, overage) },
		"a lower limit":  func(y *story) { y.about(60, "a", 7, 10, 0, 7, noon); y.limit(5); y.commit("a", 7, 7, 5, 7, 0, "") },
		"held by others": func(y *story) { y.about(60, "a", 4, 10, 0, 4, noon); y.admit("consume", 6, 10, 6, 4, "") },
		"extended": func(y *story) {
			y.about(60, "a", 4, 10, 0, 4, noon)
			y.about(61, "a", 4, 10, 0, 4, noon)
			y.about(62, "a", 4, 10, 0, 0, noon)
		},
		"expired": func(y *story) { y.about(60, "a", 4, 10, 0, 4, noon); y.about(63, "a", 4, 10, 0, 0, noon) },
	} {
		y := newStory()
		tell(y)
		for _, check := range []*tally{y.x.quotaGrants, y.x.reservationLives} {
			if r := check.result(); r.Holds == nil || !*r.Holds {
				t.Errorf("%s: %s: %s", name, r.Name, r.Figures)
			}
		}
		of := figure{tenant: uuid.UUID{1}, feature: "f", period: "2026-05"}
		if got, want := y.x.figures.heldOf(of), y.x.accounts.sum(of).held.String(); got != want {
			t.Errorf("%s: the checks hold %s, the account %s", name, got, want)
		}
	}
}

func TestFaultsOfReservationsAreReported(t *testing.T) {
	hold := func(y *story) { y.about(60, "a", 7, 10, 0, 7, noon) }
	lives, grants := func(x *pass) *tally { return x.reservationLives }, func(x *pass) *tally { return x.quotaGrants }
	for name, c := range map[string]struct {
		tell  func(y *story)
		of    func(x *pass) *tally
		fault string
	}{
		"ended twice": {func(y *story) { hold(y); y.about(62, "a", 7, 10, 0, 0, noon); y.about(63, "a", 7, 10, 0, -7, noon) },
			lives, `"a", which is RELEASED since 0-3`},
		"committed after": {func(y *story) { hold(y); y.about(63, "a", 7, 10, 0, 0, noon); y.commit("a", 3, 7, 10, 3, -7, "") },
			lives, `"a", which is EXPIRED since 0-3`},
		"never held": {func(y *story) { y.about(62, "a", 7, 10, 0, -7, noon) }, lives, "which is not held"},
		"held twice": {func(y *story) { hold(y); y.about(60, "a", 2, 10, 0, 9, noon) }, lives, "held at 0-2 and again at 0-3"},
		"expired too early": {func(y *story) {
			hold(y)
			y.about(63, "a", 7, 10, 0, 0, noon.Add(-time.Microsecond))
		}, lives, "before its time"},
		"a part released":     {func(y *story) { hold(y); y.commit("a", 3, 3, 10, 3, 4, "") }, lives, "0-3 has 3 of f in 2026-05"},
		"above the hold":      {func(y *story) { hold(y); y.commit("a", 8, 7, 10, 8, 0, "") }, lives, "without an overage"},
		"the rest stays held": {func(y *story) { hold(y); y.commit("a", 3, 7, 10, 3, 4, "") }, grants, "0-3 records 3 used and 4 held"},
		"held beyond the limit": {func(y *story) {
			hold(y)
			y.about(60, "b", 4, 10, 0, 11, noon)
		}, grants, "granted beyond the limit 10: 0 are used and 11 held"},
		"consumed what is held": {func(y *story) {
			hold(y)
			y.admit("consume", 4, 10, 4, 7, "")
		}, grants, "granted beyond the limit 10: 4 are used and 7 held"},
		"held not recorded": {func(y *story) { hold(y); y.admit("consume", 1, 10, 1, 0, "") }, grants, "0-3 records 1 used and 0 held"},
		"another limit": {func(y *story) {
			hold(y)
			y.about(62, "a", 7, 9, 0, 0, noon)
		}, grants, "records the limit 9, the log has 10"},
	} {
		y := newStory()
		c.tell(y)
		requireFault(t, name, c.of(y.x), c.fault)
	}
}
