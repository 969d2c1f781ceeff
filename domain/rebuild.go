package domain

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// States of a rebuild.
const (
	RebuildFolding    = "FOLDING"     // folds the log up to the live generation's position at the start
	RebuildCatchingUp = "CATCHING_UP" // folds the events appended since
	RebuildReady      = "READY"       // fed together with the live one, at equal positions
	RebuildPromoted   = "PROMOTED"    // visible to readers
	RebuildRolledBack = "ROLLED_BACK" // readers see the previous one again; it is kept and fed
	RebuildAbandoned  = "ABANDONED"   // dropped
	RebuildFailed     = "FAILED"      // an event could not be folded
)

// Rebuild is a new generation of a projection beside the live one. TenantID and
// PeriodKey are its scope, Nil and "" for all.
type Rebuild struct {
	ID          uuid.UUID  `json:"id"`
	Projection  string     `json:"projection"`
	Consumer    string     `json:"-"` // the consumer that feeds it
	Generation  int        `json:"generation"`
	FoldVersion string     `json:"foldVersion"`
	Purpose     string     `json:"purpose"` // rebuild or verify
	Repair      bool       `json:"repair"`  // for a verify: promoted if the live rows differ
	TenantID    uuid.UUID  `json:"tenantId"`
	PeriodKey   string     `json:"periodKey"`
	Reason      string     `json:"reason"`
	State       string     `json:"state"`
	Failure     string     `json:"failure"`
	Workers     int        `json:"workers"`
	Flip        int        `json:"flip"`    // of its last promotion, 0 if it was never promoted
	Differs     *int64     `json:"differs"` // for a verify: keys whose rows disagree with the log
	CreatedAt   time.Time  `json:"createdAt"`
	ReadyAt     *time.Time `json:"readyAt"`
	EndedAt     *time.Time `json:"endedAt"`
}

// Open reports whether the rebuild runs or waits for a decision. Meanwhile no rebuild
// with an overlapping scope may begin.
func (r *Rebuild) Open() bool {
	return r.State == RebuildFolding || r.State == RebuildCatchingUp || r.State == RebuildReady
}

// Overlaps reports whether the scopes of two rebuilds overlap.
func (r *Rebuild) Overlaps(o *Rebuild) bool {
	tenants := r.TenantID == uuid.Nil || o.TenantID == uuid.Nil || r.TenantID == o.TenantID
	periods := r.PeriodKey == "" || o.PeriodKey == "" || r.PeriodKey == o.PeriodKey
	return r.Projection == o.Projection && tenants && periods
}

// Promotable returns the reason against a promotion, nil if it is allowed.
func (r *Rebuild) Promotable() *Error {
	if r.Purpose == events.PurposeVerify {
		return notReady(r, "it is a verify, which is compared and dropped; start a rebuild")
	}
	switch r.State {
	case RebuildReady, RebuildRolledBack:
		return nil
	case RebuildFolding, RebuildCatchingUp:
		return notReady(r, "it is still "+r.State+"; wait until it is READY")
	case RebuildPromoted:
		return &Error{Code: "rebuild_promoted", Message: "The rebuild is promoted already"}
	}
	return notReady(r, "it is "+r.State+"; start another one")
}

// Comparable returns the reason why there is no comparison, nil if there is one.
func (r *Rebuild) Comparable() *Error {
	switch r.State {
	case RebuildReady, RebuildPromoted, RebuildRolledBack:
		return nil
	case RebuildFolding, RebuildCatchingUp:
		return notReady(r, "it is still "+r.State+"; wait until it is READY")
	}
	return notReady(r, "it is "+r.State+"; start another one")
}

func notReady(r *Rebuild, why string) *Error {
	return &Error{Code: "rebuild_not_ready", Message: "The rebuild is not ready: " + why}
}

// Abandonable returns the reason against abandoning it, nil if that is allowed.
func (r *Rebuild) Abandonable() *Error {
	switch r.State {
	case RebuildAbandoned:
		return &Error{Code: "rebuild_abandoned", Message: "The rebuild is abandoned already"}
	case RebuildPromoted:
		return &Error{Code: "rebuild_promoted", Message: "The rebuild is promoted; roll it back first"}
	}
	return nil
}

// Revocable returns the reason against a rollback, nil if it is allowed.
func (r *Rebuild) Revocable() *Error {
	if r.State != RebuildPromoted {
		return &Error{Code: "rebuild_not_promoted", Message: "The rebuild is " + r.State + "; only a promoted rebuild can be rolled back"}
	}
	if r.Repair {
		return &Error{Code: "rebuild_is_repair",
			Message: "The rebuild replaced rows that differ from the log; readers must not see them again"}
	}
	return nil
}
