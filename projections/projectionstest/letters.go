package projectionstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// LettersByEvent returns the dead letters of a tenant that have a status, by the producer's ids.
func (s *Letters) LettersByEvent(tenant uuid.UUID, status string) map[string]uuid.UUID {
	ids := map[string]uuid.UUID{}
	for _, l := range s.LetterList(tenant, status) {
		ids[l.EventID] = l.ID
	}
	return ids
}

func (s *Letters) Discard(tenant, id uuid.UUID) error {
	_, err := s.Commands.Discard(context.Background(), commands.Request{By: Billing}, id, tenant, "a test")
	return err
}

func (s *Letters) RetryNow(tenant, id uuid.UUID) error {
	_, err := s.Commands.RequestRetry(context.Background(), commands.Request{By: Billing}, id, tenant, "a test")
	return err
}

func RefusedWith(t *testing.T, code string, err error) {
	t.Helper()
	if no := (*domain.Error)(nil); !errors.As(err, &no) || no.Code != code || no.Message == "" {
		t.Errorf("%v instead of %s", err, code)
	}
}

// Letters is a pipeline fixture in which somebody decides over dead letters.
type Letters struct {
	*Pipeline
	Commands  *commands.DeadLetters
	Executing *consume.Runner
}

var Billing = commands.Caller{TenantID: events.Platform, KeyID: uuid.MustParse("00000000-0000-7000-8000-00000000000b"), Scopes: []string{commands.ScopeBilling}}

func NewLetters(t testing.TB) *Letters { return LettersOf(NewPipeline(t)) }

func LettersOf(s *Pipeline) *Letters {
	letters := &commands.DeadLetters{Store: s.Store, Now: time.Now, NewID: NewID}
	executing, _ := s.Runner(projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands, Handler: &store.Commands{Log: s.EventLog, Letters: letters}})
	return &Letters{s, letters, executing}
}

// LetterList lists a tenant's dead letters of a status, as the projection has them.
func (s *Letters) LetterList(tenant uuid.UUID, status string) []deadletters.DeadLetter {
	s.Helper()
	page, err := s.Reads.DeadLetters(context.Background(), Operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Status: status}, Limit: 1000})
	s.Must(err)
	return page.Data
}

func (s *Letters) Failed(tenant uuid.UUID) []deadletters.DeadLetter {
	s.Helper()
	return s.LetterList(tenant, events.StatusFailed)
}

// Bulk runs a bulk command, filtered by tenant.
func (s *Letters) Bulk(action string, tenant uuid.UUID, once commands.Idempotency) (commands.BulkResult, error) {
	ask := commands.BulkRequest{Action: action, Reason: "a test", Filter: events.DeadLetterFilter{TenantID: &tenant}}
	return s.Commands.Bulk(context.Background(), commands.Request{By: Billing, Idempotency: once}, ask, func(ctx context.Context) ([]domain.DeadLetterRef, error) {
		return s.Reads.FindDeadLetters(ctx, &ask.Filter, commands.MaxBulk+1)
	})
}

func (s *Letters) CheckIdentity() {
	s.Helper()
	identity, err := s.Reads.Identity(context.Background())
	s.Must(err)
	if !identity.Holds {
		s.Fatalf("the identity does not hold: %+v", identity.Total)
	}
}

// PoisonedHandler folds, but fails as its features say.
type PoisonedHandler struct{ projections.Handler }

func (p PoisonedHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	for i := range batch {
		v, err := codec.VerdictOf(&batch[i])
		if err != nil {
			continue // the fold finds out
		}
		switch v.Feature {
		case "panics":
			panic("boom")
		case "refused":
			if _, err := tx.Exec(ctx, `SELECT 1 / 0`); err != nil {
				return projections.Result{}, err
			}
		case "raised":
			if _, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'no'; END $$`); err != nil {
				return projections.Result{}, err
			}
		}
	}
	return p.Handler.Apply(ctx, tx, g, batch)
}
