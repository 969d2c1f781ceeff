package eventlog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/tier"
)

// refusedUsage is the payload of a refusal.
const refusedUsage = `{"code":"feature_not_found","reason":"r","messageId":"m","index":0,"topic":"usage.commands","kafkaPartition":0,` +
	`"kafkaOffset":0,"bytes":1}`

// delivery is a message with one event, as it is submitted once.
type delivery struct {
	message int
	event   string
	amount  int
	refused bool // by policy, this time
}

func (d delivery) submitted(tenant uuid.UUID) metering.Submitted {
	s := usageEvent(tenant, d.event, d.amount)
	s.Inbox = events.KeyRefused(fmt.Sprint("m", d.message), sha256.Sum256(nil), 0)
	if d.refused {
		s.Refusal = domain.Refuse("feature_not_found", "", "r")
	}
	s.Refuse = refusing(s.Pending, s.Inbox)
	return s
}

// expected returns the results of the deliveries, one after the other.
type expected struct {
	refused map[int]bool
	stored  map[string]int
}

func (x *expected) take(d delivery) metering.OutcomeStatus {
	amount, known := x.stored[d.event]
	switch {
	case x.refused[d.message]:
		return metering.Refused
	case known && amount == d.amount:
		return metering.Duplicate
	case known:
		return metering.Conflict
	case d.refused:
		x.refused[d.message] = true
		return metering.Refused
	}
	x.stored[d.event] = d.amount
	return metering.Appended
}

// Messages are delivered repeatedly, in any order and batch, while policy accepts them
// or not: each keeps the result of its first delivery.
func TestP2_RefusedMessagesStayRefused(t *testing.T) {
	l, pool, _ := openLog(t)
	rng := rand.New(rand.NewPCG(tier.Seed(t), 1))
	for round := range tier.Draws(t, 15, 80) {
		tenant := uuid.Must(uuid.NewV7())
		want := expected{map[int]bool{}, map[string]int{}}
		messages := make([]delivery, 12)
		for i := range messages {
			messages[i] = delivery{message: i, event: fmt.Sprint("e", rng.IntN(3)), amount: 1 + rng.IntN(2)}
		}
		for range 8 {
			var batch []metering.Submitted
			var statuses []metering.OutcomeStatus
			var sent []delivery
			for range 1 + rng.IntN(16) {
				d := messages[rng.IntN(len(messages))]
				d.refused = rng.IntN(3) == 0
				batch, statuses, sent = append(batch, d.submitted(tenant)), append(statuses, want.take(d)), append(sent, d)
			}
			for i, p := range submit(t, l, tenant, batch...) {
				if p.Status != statuses[i] || p.Position.Number == 0 {
					t.Fatalf("round %d, delivery %d of %+v: status %d at %s, want %d", round, i, sent, p.Status, p.Position, statuses[i])
				}
			}
		}
		if n := count(t, pool, `SELECT count(*) FROM inbox WHERE tenant_id = $1`, tenant); n != len(want.refused) {
			t.Fatalf("round %d: %d refusals are recorded, want %d", round, n, len(want.refused))
		}
	}
}

// An event behind two of its key in a batch, one refused by an earlier delivery and one refused now, is the
// first that is stored: it is a duplicate of neither.
func TestP2_AnEventBehindRefusedOnesIsStored(t *testing.T) {
	l, _, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	deliver := func(message int, refused bool) metering.Submitted {
		return delivery{message: message, event: "e", amount: 1, refused: refused}.submitted(tenant)
	}
	submit(t, l, tenant, deliver(0, true))
	got := submit(t, l, tenant, deliver(0, false), deliver(1, true), deliver(2, false), deliver(3, false))
	for i, want := range []metering.OutcomeStatus{metering.Refused, metering.Refused, metering.Appended, metering.Duplicate} {
		if got[i].Status != want {
			t.Errorf("delivery %d: status %d, want %d", i, got[i].Status, want)
		}
	}
}

// The same messages through several instances at once, with different verdicts of
// policy: each message has only one result.
func TestP2_ConcurrentDeliveriesOfAMessageHaveOneOutcome(t *testing.T) {
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	messages := tier.Draws(t, 100, 300)
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(worker)))
			for _, i := range rng.Perm(messages) {
				d := delivery{message: i, event: fmt.Sprint("e", i), amount: 1, refused: rng.IntN(2) == 0}
				if _, err := l.Submit(t.Context(), tenant, []metering.Submitted{d.submitted(tenant)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	accepted := count(t, pool, `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 1`, tenant)
	refused := count(t, pool, `SELECT count(*) FROM inbox WHERE tenant_id = $1`, tenant)
	if accepted+refused != messages || accepted == 0 || refused == 0 {
		t.Errorf("%d messages: %d accepted, %d refused", messages, accepted, refused)
	}
}

// requestByMessage makes a quota request that a message brought: its refusal is an event.
func requestByMessage(tenant uuid.UUID, message int, eventID string, amount int) metering.Submitted {
	s := requestFor(tenant, eventID, amount)
	s.Inbox = events.KeyRefused(fmt.Sprint("m", message), sha256.Sum256(nil), 0)
	s.Refuse = refusing(s.Pending, s.Inbox)
	return s
}

// refusing makes the event that records a refusal of usage.
func refusing(p events.Pending, inbox string) func(*domain.Error) events.Pending {
	return func(refusal *domain.Error) events.Pending {
		return events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRefused, TenantID: p.TenantID, DedupeKey: inbox,
			Actor: p.Actor, Residency: events.ResidencyUnspecified, OccurredAt: p.OccurredAt,
			Payload: []byte(strings.Replace(refusedUsage, "feature_not_found", refusal.Code, 1))}
	}
}

// The denial of usage that a message brought is recorded once, in the turn of the message, however often it is delivered and
// whatever the limit is by then.
func TestP7_ADeniedMessageStaysRefused(t *testing.T) {
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("in one group ", together), func(t *testing.T) {
			tenant := uuid.Must(uuid.NewV7())
			g := &grants{limits: map[uuid.UUID]int64{tenant: 10}}
			l, pool := openLogAt(t, migrated(t), func(c *Config) { c.Histories = g })
			batch := []metering.Submitted{
				requestByMessage(tenant, 1, "a", 6),
				requestByMessage(tenant, 2, "b", 5),
				requestByMessage(tenant, 2, "b", 5), // delivered again
				requestByMessage(tenant, 1, "a", 6),
				requestByMessage(tenant, 3, "b", 3), // another message with the refused event's id
				requestByMessage(tenant, 4, "b", 4),
				requestByMessage(tenant, 2, "b", 5),
				requestByMessage(tenant, 5, "c", 1),
			}
			var outcomes []metering.Outcome
			if together {
				outcomes = submit(t, l, tenant, batch...)
			} else {
				for i := range batch {
					outcomes = append(outcomes, submit(t, l, tenant, batch[i])...)
				}
			}
			for i, want := range []metering.OutcomeStatus{metering.Appended, metering.Refused, metering.Refused, metering.Duplicate,
				metering.Appended,
				metering.Conflict, metering.Refused, metering.Appended} {
				if outcomes[i].Status != want || want == metering.Refused && outcomes[i].Position != outcomes[1].Position {
					t.Errorf("message %d: %+v instead of %d", i, outcomes[i], want)
				}
			}
			g.limits[tenant] = 1000
			if again := submit(t, l, tenant, requestByMessage(tenant, 2, "b", 5)); again[0].Status != metering.Refused ||
				again[0].Position != outcomes[1].Position {
				t.Errorf("delivered again under a higher limit: %+v", again)
			}
			stored, err := l.Read(t.Context(), outcomes[1].Position.Partition, outcomes[1].Position.Number-1, outcomes[1].Position.Number,
				1)
			var refused events.RefusedUsage
			if err != nil || len(stored) != 1 || json.Unmarshal(stored[0].Payload, &refused) != nil || refused.Code != "quota_exceeded" {
				t.Errorf("the refusal is %+v %v", stored, err)
			}
			if used := usedOf(t, pool, tenant); used != "10" {
				t.Errorf("%s are used", used)
			}
			checkDense(t, pool)
		})
	}
}
