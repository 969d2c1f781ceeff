package projections

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Conflict is a known eventId that came with another payload. FirstPosition and
// FirstHash are of the payload that stays; At and Position are of the record of
// the conflict. Hashes are SHA-256 in hex.
type Conflict struct {
	EventID       string          `json:"eventId"`
	FirstPosition events.Position `json:"firstPosition"`
	FirstHash     string          `json:"firstHash"`
	ConflictHash  string          `json:"conflictHash"`
	Position      events.Position `json:"position"`
	At            time.Time       `json:"at"`
}

// ConflictPage is a page. Next is the cursor of the next one, "" on the last.
type ConflictPage struct {
	Data []Conflict
	Next string
}

// Conflicts lists a tenant's conflicts from the log, in the order of eventId and
// hash.
func (r *Reads) Conflicts(ctx context.Context, v Viewer, tenant uuid.UUID, limit int, after string) (ConflictPage, error) {
	return ConflictPage{}, errUnwritten
}
