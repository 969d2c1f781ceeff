package domain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// States of an offboarding.
const (
	OffboardingRunning    = "RUNNING"
	OffboardingCancelling = "CANCELLING" // its effects are being reverted
	OffboardingCancelled  = "CANCELLED"  // ended; the tenant is active
	OffboardingArchived   = "ARCHIVED"   // ended; nothing of the tenant changes any more
)

// OffboardingDeadline is the time after which an offboarding that still waits is partial.
const OffboardingDeadline = 24 * time.Hour

// Offboarding is the end of a tenant, in steps. Its times are of the database's clock.
type Offboarding struct {
	ID           uuid.UUID
	TenantID     uuid.UUID
	SagaID       uuid.UUID
	State        string
	Step         string // the last step that ended
	Reason       string
	Actor        string
	CancelReason string
	CancelActor  string
	RequestedAt  time.Time
	SuspendedAt  *time.Time
	DrainedTo    int64     // usage recorded up to this number counts before periods are closed; 0: not known yet
	Closed       []Closing // periods that it closed before their end
	Exports      int       // manifests so far
	Manifest     []byte    // the last manifest; nil without one
	EndedAt      *time.Time
}

// offboardingSteps lists the steps in their order.
var offboardingSteps = []string{events.OffboardingRequested, events.OffboardingSuspended, events.OffboardingDrained,
	events.OffboardingClosed, events.OffboardingPushed,
	events.OffboardingExported, events.OffboardingArchived}

// Reached reports whether a step has ended.
func (o *Offboarding) Reached(step string) bool {
	return slices.Index(offboardingSteps, o.Step) >= slices.Index(offboardingSteps, step)
}

// Blocks returns why the tenant's catalogue, keys and periods cannot be changed; nil if they can.
func (o *Offboarding) Blocks() *Error {
	switch {
	case o == nil || o.State == OffboardingCancelled:
		return nil
	case o.State == OffboardingArchived:
		return archived()
	}
	return &Error{Code: "tenant_offboarding",
		Message: "The tenant is being offboarded; cancel it first: POST /tenants/{tenantId}/offboard/cancel"}
}

func archived() *Error {
	return &Error{Code: "tenant_offboarding", Message: "The tenant is ARCHIVED: it cannot be changed"}
}

// Cancel requests that the effects are reverted, and reports whether that is new. Refusals: offboarding_ended.
func (o *Offboarding) Cancel(reason, actor string) (requested bool, refusal *Error) {
	switch o.State {
	case OffboardingCancelling:
		return false, nil
	case OffboardingRunning:
		o.State, o.CancelReason, o.CancelActor = OffboardingCancelling, reason, actor
		return true, nil
	}
	return false, &Error{Code: "offboarding_ended",
		Message: "The offboarding is " + o.State + "; it can be cancelled until the tenant is archived"}
}

// End ends the offboarding.
func (o *Offboarding) End(state, step string, now time.Time) {
	o.State, o.Step, o.EndedAt = state, step, &now
}

// ToReopen returns the periods that a cancelled offboarding reopens, and those that are still being closed. A period that was reopened
// since is left as it is.
func (o *Offboarding) ToReopen(h *PeriodHistory) (reopen []Closing, closing []string) {
	for _, c := range o.Closed {
		last := h.Last(c.PeriodKey)
		if last == nil || last.Snapshot != c.Snapshot {
			continue
		}
		switch last.State() {
		case StateClosing:
			closing = append(closing, c.PeriodKey)
		case StateClosed:
			reopen = append(reopen, c)
		}
	}
	return reopen, closing
}

// ToClose returns the periods of a tenant that ends which are open, and those that are being closed. used lists the periods with usage.
func (h *PeriodHistory) ToClose(used []string) (open, closing []string) {
	keys := slices.Clone(used)
	for _, c := range h.Changes {
		keys = append(keys, c.PeriodKey)
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		switch h.Last(key).State() {
		case StateOpen:
			if slices.Contains(used, key) {
				open = append(open, key)
			}
		case StateClosing:
			closing = append(closing, key)
		}
	}
	return open, closing
}

// ClosableAtEnd returns the snapshot that the close of an open period of a tenant that ends begins, and whether it is before the period's
// end. Every period is closable then, lifetime too.
func (h *PeriodHistory) ClosableAtEnd(periodKey string, now time.Time) (snapshot int, early bool) {
	snapshot = 1
	if last := h.Last(periodKey); last != nil {
		snapshot = last.Snapshot + 1
	}
	_, end, bounded := PeriodBounds(periodKey)
	return snapshot, !bounded || now.Before(end)
}

// OffboardingManifest lists what is kept of a tenant.
type OffboardingManifest struct {
	TenantID  uuid.UUID          `json:"tenantId"`
	Snapshots []ExportedSnapshot `json:"snapshots"`
	Log       ExportedLog        `json:"log"`
}

// ExportedSnapshot is a snapshot of a closed period. SHA256 is that of the document that figuresHash is computed from.
type ExportedSnapshot struct {
	PeriodKey string          `json:"periodKey"`
	Snapshot  int             `json:"snapshot"`
	Cut       events.Position `json:"cutPosition"`
	Lines     int             `json:"lines"`
	Bytes     int64           `json:"bytes"`
	SHA256    string          `json:"sha256"`
}

// ExportedLog describes the tenant's events in the log.
type ExportedLog struct {
	Events int64            `json:"events"`
	First  *events.Position `json:"firstPosition"`
	Last   *events.Position `json:"lastPosition"`
	Bytes  int64            `json:"bytes"`
	SHA256 string           `json:"sha256"`
}

// Encode returns the bytes of the manifest. They depend only on its members.
func (m *OffboardingManifest) Encode() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// ManifestHash returns the hex SHA-256 of a manifest.
func ManifestHash(manifest []byte) string {
	sum := sha256.Sum256(manifest)
	return hex.EncodeToString(sum[:])
}

// Lists reports whether the manifest lists the snapshots, in any order.
func (m *OffboardingManifest) Lists(snapshots []Closing) bool {
	if len(snapshots) != len(m.Snapshots) {
		return false
	}
	for _, s := range m.Snapshots {
		if !slices.Contains(snapshots, Closing{m.TenantID, s.PeriodKey, s.Snapshot}) {
			return false
		}
	}
	return true
}

// Lists reports whether the offboarding has a manifest that lists the snapshots.
func (o *Offboarding) Lists(snapshots []Closing) (bool, error) {
	if o.Manifest == nil {
		return false, nil
	}
	m, err := DecodeManifest(o.Manifest)
	return err == nil && m.Lists(snapshots), err
}

// DecodeManifest returns the members of a manifest.
func DecodeManifest(manifest []byte) (m OffboardingManifest, err error) {
	return m, json.Unmarshal(manifest, &m)
}
