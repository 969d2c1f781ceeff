package eventlog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// requestByMessage makes a quota request that a message brought: its refusal is an event.
func requestByMessage(tenant uuid.UUID, message int, eventID string, amount int) commands.Submitted {
	s := requestFor(tenant, eventID, amount)
	s.Inbox = events.KeyRefused(fmt.Sprint("m", message), sha256.Sum256(nil), 0)
	actor, at, inbox := s.Actor, s.OccurredAt, s.Inbox
	s.Refuse = func(refusal *domain.Error) events.Pending {
		return events.Pending{EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRefused, TenantID: tenant, DedupeKey: inbox, Actor: actor,
			Residency: events.ResidencyUnspecified, OccurredAt: at, Payload: []byte(strings.Replace(refusedUsage, "feature_not_found", refusal.Code, 1))}
	}
	return s
}

// The denial of usage that a message brought is recorded once, in the turn of the message, however often it is delivered and
// whatever the limit is by then.
func TestP7_ADeniedMessageStaysRefused(t *testing.T) {
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint("in one group ", together), func(t *testing.T) {
			tenant := uuid.Must(uuid.NewV7())
			g := &grants{limits: map[uuid.UUID]int64{tenant: 10}}
			l, pool := openLogAt(t, migrated(t), func(c *Config) { c.Histories = g })
			batch := []commands.Submitted{
				requestByMessage(tenant, 1, "a", 6),
				requestByMessage(tenant, 2, "b", 5),
				requestByMessage(tenant, 2, "b", 5), // delivered again
				requestByMessage(tenant, 1, "a", 6),
				requestByMessage(tenant, 3, "b", 3), // another message with the refused event's id
				requestByMessage(tenant, 4, "b", 4),
				requestByMessage(tenant, 2, "b", 5),
				requestByMessage(tenant, 5, "c", 1),
			}
			var places []commands.Placement
			if together {
				places = submit(t, l, tenant, batch...)
			} else {
				for i := range batch {
					places = append(places, submit(t, l, tenant, batch[i])...)
				}
			}
			for i, want := range []commands.PlacementStatus{commands.Appended, commands.Refused, commands.Refused, commands.Duplicate, commands.Appended,
				commands.Conflict, commands.Refused, commands.Appended} {
				if places[i].Status != want || want == commands.Refused && places[i].Position != places[1].Position {
					t.Errorf("message %d: %+v instead of %d", i, places[i], want)
				}
			}
			g.limits[tenant] = 1000
			if again := submit(t, l, tenant, requestByMessage(tenant, 2, "b", 5)); again[0].Status != commands.Refused || again[0].Position != places[1].Position {
				t.Errorf("delivered again under a higher limit: %+v", again)
			}
			stored, err := l.Read(t.Context(), places[1].Position.Partition, places[1].Position.Number-1, places[1].Position.Number, 1)
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
