package query

import (
	"encoding/json"
	"time"

	"github.com/meterplex/meterplex/events"
)

const ReadTimes = `
SELECT place.partition, place.number, l.recorded_at
FROM unnest($1::smallint[], $2::bigint[]) AS place (partition, number)
CROSS JOIN LATERAL (SELECT e.recorded_at FROM event_log e WHERE e.partition = place.partition AND e.position = place.number LIMIT 1) l`

// Timed is a position with its time of recording.
type Timed struct {
	events.Position
	At time.Time
}

// UnmarshalOptional decodes JSON, if present.
func UnmarshalOptional(b []byte, into any) error {
	if b == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}
