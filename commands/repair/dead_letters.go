package repair

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// DeadLetters decides on dead letters. The request for a retry is recorded and
// answered with 202; the command router executes it. A retry is a new event, never
// the old event again. A discard is complete when its request is answered.
type DeadLetters struct {
	Store DeadLetterStore
	Now   commands.Clock
	NewID func() uuid.UUID
}

// DeadLetterStore runs changes of dead letters.
type DeadLetterStore interface {
	// ChangeDeadLetters runs decide as commands.Store.Change does.
	ChangeDeadLetters(ctx context.Context, tenant uuid.UUID, decide func(DeadLetterTx) error) error
}

// DeadLetterTx is the transaction of a change of dead letters.
type DeadLetterTx interface {
	commands.Tx
	commands.SagaStarter
	// DeadLetters returns the dead letters of the partition that have one of the ids, as
	// of the events in the log.
	DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*domain.DeadLetter, error)
	// Periods returns the changes of the periods of tenants of the partition.
	Periods(tenants []uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error)
	// Approved returns the snapshots with an approved adjustment of a tenant by a recorded event.
	Approved(tenant uuid.UUID, recorded int64) ([]domain.Closing, error)
	// Events reads events of the partition by their numbers.
	Events(numbers []int64) (map[int64]events.Envelope, error)
}

func (d *DeadLetters) now() time.Time { return d.Now().UTC().Truncate(time.Microsecond) }

func (d *DeadLetters) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[DeadLetterTx] {
	return func(decide func(DeadLetterTx) error) error { return d.Store.ChangeDeadLetters(ctx, tenant, decide) }
}

// deadLetter loads a dead letter of a tenant.
func deadLetter(tx DeadLetterTx, id, tenant uuid.UUID) (*domain.DeadLetter, error) {
	found, err := tx.DeadLetters([]uuid.UUID{id})
	if err != nil {
		return nil, err
	}
	if letter := found[id]; letter != nil && letter.TenantID == tenant {
		return letter, nil
	}
	return nil, noDeadLetter()
}

func noDeadLetter() *domain.Error {
	return domain.Refuse("dead_letter_not_found", "", "no such dead letter")
}

// request makes the event of a request about a dead letter. Its dedupe key is the
// same for all requests that ask for the same.
func (d *DeadLetters) request(req *commands.Request, l *domain.DeadLetter, cause uuid.UUID, subject events.Subject, key string,
	payload any) (events.Pending, error) {
	p, err := req.Event(d.NewID(), d.now(), l.TenantID, subject, payload)
	p.DedupeKey, p.CausationID = key, cause
	return p, err
}
