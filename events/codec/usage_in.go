package codec

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// AdmittedOf reads usage with its admission; the admission is nil for recorded usage.
func AdmittedOf(payload []byte) (events.Usage, *events.Admission, error) {
	if !bytes.Contains(payload, []byte(`"admitted":{`)) {
		u, err := UsageOf(payload)
		return u, nil, err
	}
	var a struct {
		events.Usage
		Admitted *events.Admission `json:"admitted"`
	}
	if err := json.Unmarshal(payload, &a); err != nil {
		return events.Usage{}, nil, fmt.Errorf("decoding admitted usage: %w", err)
	}
	return a.Usage, a.Admitted, nil
}

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
