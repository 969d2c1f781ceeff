package overview

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Kind is a kind of items that need an operator.
type Kind string

// Kinds of items. The path of an item lists them in the API.
const (
	IdentityBroken    Kind = "identity_broken"
	OutboxStalled     Kind = "outbox_stalled"
	FailedDeadLetters Kind = "dead_letters_failed"
	ProjectionDrift   Kind = "projection_drift"
	BrokenGeneration  Kind = "generation_broken"
	AccountDrift      Kind = "accounts_drift"
	LateClose         Kind = "close_late"
	LateSaga          Kind = "saga_late"
	DriftingSaga      Kind = "saga_drift"
	FailedPush        Kind = "push_failed"
	UnknownPush       Kind = "push_unknown"
	PushDifference    Kind = "push_difference"
	DisabledWebhook   Kind = "webhook_disabled"
)

// Kinds returns all kinds by severity: exactness before delay.
func Kinds() []Kind {
	return []Kind{IdentityBroken, ProjectionDrift, AccountDrift, DriftingSaga, BrokenGeneration, OutboxStalled, FailedDeadLetters,
		LateClose, LateSaga, FailedPush, UnknownPush, PushDifference, DisabledWebhook}
}

// outboxStalledAfter is the age of an unpublished event from which the outbox needs an operator, as the alert
// MeterplexOutboxStalled.
const outboxStalledAfter = time.Minute

// Attention is a group of items of one kind.
type Attention struct {
	Kind     Kind       `json:"kind" enum:"identity_broken,projection_drift,accounts_drift,saga_drift,generation_broken,outbox_stalled,dead_letters_failed,close_late,saga_late,push_failed,push_unknown,push_difference,webhook_disabled" doc:"Kind of the items."`
	Subject  *string    `json:"subject" doc:"Stage of dead letters, name of a projection or kind of sagas; null for other kinds." example:"VALIDATION"`
	Count    int64      `json:"count" doc:"Number of items; of dead letters up to 100,000 are counted." example:"3"`
	Since    *time.Time `json:"since" doc:"Time of the oldest item; null if it is not known."`
	TenantID *uuid.UUID `json:"tenantId" format:"uuid" doc:"The tenant of the oldest item if path lists the items of one tenant; null for other paths."`
	Path     *string    `json:"path" doc:"Path of the API that lists the items; null: the runbook of the kind has the procedure." example:"/api/v1/dead-letters?status=FAILED&stage=VALIDATION"`
}

// sorted returns the items by severity, then by subject.
func sorted(found map[Kind][]Attention) []Attention {
	all, order := []Attention{}, Kinds()
	for _, list := range found {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b Attention) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), cmp.Compare(text(a.Subject), text(b.Subject)))
	})
	return all
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Item returns the items of a kind, or nothing if the count is 0. An empty subject or path is null.
func Item(kind Kind, subject string, count int64, since *time.Time, path string) []Attention {
	if count == 0 {
		return nil
	}
	a := Attention{Kind: kind, Count: count, Since: utc(since)}
	if subject != "" {
		a.Subject = &subject
	}
	if path != "" {
		a.Path = &path
	}
	return []Attention{a}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	in := t.UTC()
	return &in
}
