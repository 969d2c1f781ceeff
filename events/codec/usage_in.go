package codec

import "encoding/json"

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
