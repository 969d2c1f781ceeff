package overview

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/state"
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
	Subject  *string    `json:"subject" example:"VALIDATION"`
	Count    int64      `json:"count" doc:"Number of items; of dead letters up to 100,000 are counted." example:"3"`
	Since    *time.Time `json:"since" doc:"Time of the oldest item; null if it is not known."`
	TenantID *uuid.UUID `json:"tenantId" format:"uuid"`
	Path     *string    `json:"path" example:"/api/v1/dead-letters?status=FAILED&stage=VALIDATION"`
}

// attention returns the items of a state by severity, then by subject.
func attention(s *state.State) []Attention {
	all := items{}
	if i := s.Identity; i != nil && !i.Holds {
		all.add(IdentityBroken, "", max(1, i.Missing, -i.Missing), &i.ComparedAt, "/api/v1/system/identity")
	}
	if o := &s.Outbox.Totals; o.OldestUnpublishedSeconds > outboxStalledAfter.Seconds() {
		all.add(OutboxStalled, "", o.Unpublished, o.OldestUnpublishedAt, "/api/v1/outbox")
	}
	for _, l := range s.DeadLetters.Groups {
		if l.Status == "FAILED" && l.Stage != events.StageIngestion { // those are errors of a producer, and no work for an operator
			all.add(FailedDeadLetters, l.Stage, l.Count, l.Oldest, "/api/v1/dead-letters?status=FAILED&stage="+l.Stage)
		}
	}
	for _, r := range s.LastRebuilds {
		if r.Differs != nil {
			all.add(ProjectionDrift, r.Projection, *r.Differs, r.VerifiedAt, "/api/v1/rebuilds")
		}
	}
	for projection, n := range s.Generations.Broken() {
		all.add(BrokenGeneration, projection, n, nil, "/api/v1/projections")
	}
	all.add(AccountDrift, "", s.Accounts.Differ, nil, "")
	for _, g := range s.Sagas {
		if kind := stuckSagas(g.Kind, g.State); kind != "" {
			all.add(kind, g.Kind, g.Count, &g.Since, "/api/v1/sagas?state="+g.State+"&kind="+g.Kind)
		}
	}
	all.add(FailedPush, "", s.Pushes.Failed, s.Pushes.FailedSince, "/api/v1/pushes?state=FAILED")
	all.add(UnknownPush, "", s.Pushes.Unknown, s.Pushes.UnknownSince, "/api/v1/pushes?state=UNKNOWN")
	all.add(PushDifference, "", s.Pushes.Differences, nil, "")
	if d := s.Disabled; d.Tenant != nil {
		all.add(DisabledWebhook, "", d.Count, d.Since, "/api/v1/tenants/"+d.Tenant.String()+"/webhooks")
		all[len(all)-1].TenantID = d.Tenant
	}
	order := Kinds()
	slices.SortFunc(all, func(a, b Attention) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), cmp.Compare(text(a.Subject), text(b.Subject)))
	})
	return all
}

// stuckSagas returns the kind of the items of sagas in a state, or "" if they need no operator.
func stuckSagas(kind, in string) Kind {
	switch {
	case in == domain.SagaDrift:
		return DriftingSaga
	case in == domain.SagaPartial && kind == domain.SagaPeriodClose:
		return LateClose
	case in == domain.SagaPartial:
		return LateSaga
	}
	return ""
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

type items []Attention

// add adds the items of a kind, unless the count is 0. An empty subject or path is null.
func (i *items) add(kind Kind, subject string, count int64, since *time.Time, path string) {
	if count == 0 {
		return
	}
	a := Attention{Kind: kind, Count: count, Since: since}
	if subject != "" {
		a.Subject = &subject
	}
	if path != "" {
		a.Path = &path
	}
	*i = append(*i, a)
}
