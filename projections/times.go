package projections

import (
	"encoding/json"
	"time"

	"github.com/meterplex/meterplex/events"
)

const readTimes = `
SELECT place.partition, place.number, l.recorded_at
FROM unnest($1::smallint[], $2::bigint[]) AS place (partition, number)
CROSS JOIN LATERAL (SELECT e.recorded_at FROM event_log e WHERE e.partition = place.partition AND e.position = place.number LIMIT 1) l`

// timed is a place with its time of recording.
type timed struct {
	events.Position
	at time.Time
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// unmarshalAny decodes what may be absent.
func unmarshalAny(b []byte, into any) error {
	if b == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}
