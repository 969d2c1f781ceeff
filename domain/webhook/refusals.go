package webhook

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// RefusalNotice is the data of a webhook's event of the type usage.refused: one group of an event of refusals, with its samples without
// their payloads, which may describe people.
type RefusalNotice struct {
	events.RefusalGroup
	From    time.Time           `json:"from"`
	Samples []events.SeenSample `json:"samples"`
}

// RefusalNotices returns the notices of an event of refusals by their ids. The id of a group is the same in all events of a minute,
// whatever instance wrote them, so that a webhook gets a group at most once a minute.
func RefusalNotices(tenant uuid.UUID, payload []byte) (map[uuid.UUID]RefusalNotice, error) {
	var seen events.Refusals
	if err := json.Unmarshal(payload, &seen); err != nil {
		return nil, fmt.Errorf("reading refusals: %w", err)
	}
	minute := seen.From.Unix() / 60
	notices := make(map[uuid.UUID]RefusalNotice, len(seen.Groups))
	for _, group := range seen.Groups {
		n := RefusalNotice{RefusalGroup: group, From: seen.From, Samples: []events.SeenSample{}}
		for _, s := range seen.Samples {
			if s.Code == group.Code && s.Feature == group.Feature {
				s.Payload = ""
				n.Samples = append(n.Samples, s)
			}
		}
		notices[uuid.NewSHA1(tenant, fmt.Appendf(nil, "usage.refused %s %s %d", group.Code, group.Feature, minute))] = n
	}
	return notices, nil
}
