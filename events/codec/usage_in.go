package codec

import (
	"encoding/json"
	"time"

	"github.com/meterplex/meterplex/events"
)

// UsageIn finds the producer's event in the payload of any event about usage: recorded
// usage and verdicts have it at the top, their retries have it inside. It is zero for
// other payloads.
func UsageIn(payload json.RawMessage) (found struct{ EventID, Feature string }) {
	type usage struct {
		EventID string `json:"eventId"`
		Feature string `json:"feature"`
	}
	var in struct {
		usage
		Usage     usage `json:"usage"`
		Validated usage `json:"validated"`
	}
	if json.Unmarshal(payload, &in) != nil {
		return found
	}
	for _, u := range []usage{in.usage, in.Usage, in.Validated} {
		if u.EventID != "" {
			found.EventID, found.Feature = u.EventID, u.Feature
			break
		}
	}
	return found
}

// UsageInRow is UsageIn for the body of a log row, of a recorded event in short without its payload.
func UsageInRow(subject events.Subject, key string, at time.Time, body []byte) (found struct{ EventID, Feature string }) {
	if subject == events.UsageRecorded && len(body) > 0 && body[0] == '[' && len(key) > 2 {
		r := payloadReader{rest: body}
		r.skip(`[`)
		r.number(64)
		r.skip(`,"`)
		if found.Feature = string(r.text()); !r.bad {
			found.EventID = key[2:]
			return found
		}
	}
	return UsageIn(WholePayload(subject, key, at, body))
}
