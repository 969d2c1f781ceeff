package projectionstest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// Letters is a pipeline fixture in which somebody decides over dead letters.
type Letters struct {
	*Pipeline
	Commands  *repair.DeadLetters
	Executing *consume.Runner
}

// NewLetters makes the fixture on a database of its own.
func NewLetters(t testing.TB) *Letters { return LettersOf(NewPipeline(t)) }

// LettersOf adds the commands on dead letters to a pipeline.
func LettersOf(s *Pipeline) *Letters {
	letters := &repair.DeadLetters{Store: s.Store, Now: time.Now, NewID: NewID}
	executing, _ := s.Runner(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands,
		Handler: &store.Commands{Log: s.EventLog, Letters: letters}})
	return &Letters{s, letters, executing}
}

// Billing is a caller with the scope of billing.
var Billing = commands.Caller{TenantID: events.Platform, KeyID: uuid.MustParse("00000000-0000-7000-8000-00000000000b"),
	Scopes: []string{commands.ScopeBilling}}

// LetterList lists a tenant's dead letters of a status, as the projection has them.
func (s *Letters) LetterList(tenant uuid.UUID, status string) []deadletters.DeadLetter {
	s.Helper()
	page, err := s.Reads.DeadLetters(context.Background(), Operator,
		deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Status: status}, Limit: 1000})
	s.Must(err)
	return page.Data
}

// Failed lists a tenant's dead letters that wait for a decision.
func (s *Letters) Failed(tenant uuid.UUID) []deadletters.DeadLetter {
	s.Helper()
	return s.LetterList(tenant, events.StatusFailed)
}

// LettersByEvent returns the dead letters of a tenant that have a status, by the producer's ids.
func (s *Letters) LettersByEvent(tenant uuid.UUID, status string) map[string]uuid.UUID {
	ids := map[string]uuid.UUID{}
	for _, l := range s.LetterList(tenant, status) {
		ids[l.EventID] = l.ID
	}
	return ids
}

// Discard requests the discard of a dead letter.
func (s *Letters) Discard(tenant, id uuid.UUID) error {
	_, err := s.Commands.Discard(context.Background(), commands.Request{By: Billing}, id, tenant, "a test")
	return err
}

// RetryNow requests the retry of a dead letter.
func (s *Letters) RetryNow(tenant, id uuid.UUID) error {
	_, err := s.Commands.RequestRetry(context.Background(), commands.Request{By: Billing}, id, tenant, "a test")
	return err
}

// Bulk runs a bulk command, filtered by tenant.
func (s *Letters) Bulk(action string, tenant uuid.UUID, once commands.Idempotency) (repair.BulkResult, error) {
	ask := repair.BulkRequest{Action: action, Reason: "a test", Filter: events.DeadLetterFilter{TenantID: &tenant}}
	return s.Commands.Bulk(context.Background(), commands.Request{By: Billing, Idempotency: once}, ask,
		func(ctx context.Context) ([]domain.DeadLetterRef, error) {
			return s.Reads.FindDeadLetters(ctx, &ask.Filter, repair.MaxBulk+1)
		})
}

// CheckIdentity ends the test if the identity does not hold.
func (s *Letters) CheckIdentity() {
	s.Helper()
	identity, err := s.Reads.Identity(context.Background())
	s.Must(err)
	if !identity.Holds {
		s.Fatalf("the identity does not hold: %+v", identity.Total)
	}
}
