package commands

import (
	"time"

	"github.com/google/uuid"
)

// Admission is the state of a request's key when the request was admitted. It is compared with the tables under the head's lock: the
// instance may have been frozen since, and the key or its tenant ended meanwhile. The zero value belongs to callers without such a key: the
// service itself, and the configured operator key.
type Admission struct {
	TenantID uuid.UUID   // Platform for operators' keys
	KeyID    uuid.UUID   // Nil for messages, which have no key
	Until    *time.Time  // the end of the key; nil: it has no end
	Seen     CatalogueAt // while the key and its tenant were in this state
	Refusing bool        // the tenant was SUSPENDED: only refusals are recorded, unless it is ARCHIVED by then
}

// CatalogueAt is how far the catalogue and the periods of a partition had come. The zero value: not known.
type CatalogueAt struct {
	Epoch    int32
	Position int64
}

// OrNil returns nil for the zero value.
func (a *Admission) OrNil() *Admission {
	if *a == (Admission{}) {
		return nil
	}
	return a
}
