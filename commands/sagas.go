package commands

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// SagaKind is a kind of saga: its steps, and the code that runs them.
type SagaKind struct {
	Name  string
	Steps []string
	// Despite lists the conditions that an operator may waive.
	Despite []string
	// Run runs the saga's step in transactions of its own. It is called again after a lost result, so that each effect needs a key of
	// its own. It ends soon after ctx, and keeps no reference to the saga.
	Run func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error)
}

// SagaStarter starts sagas in the transaction of a change.
type SagaStarter interface {
	// StartSaga stores a saga whose first step is due at once. If kind, tenant and key are known, it changes nothing and returns the
	// earlier saga.
	StartSaga(start domain.SagaStart) (saga *domain.Saga, started bool, err error)
}

// SagaStore changes sagas.
type SagaStore interface {
	// ChangeSagas runs decide in one transaction. An error of decide rolls back and is returned unchanged.
	ChangeSagas(ctx context.Context, decide func(SagaTx) error) error
}

// SagaTx is the transaction of a change of sagas.
type SagaTx interface {
	Answers
	// Saga loads and locks a saga.
	Saga(id uuid.UUID) (*domain.Saga, error)
	// SaveRetry saves the saga after a retry. It is due at once, or when the running step ends.
	SaveRetry(s *domain.Saga) error
}

// SagaReader reads sagas.
type SagaReader interface {
	Saga(ctx context.Context, id uuid.UUID) (*domain.Saga, error)
	Sagas(ctx context.Context, q SagaQuery) ([]domain.Saga, error)
}

// SagaQuery selects a page of sagas, the newest first.
type SagaQuery struct {
	Kind, State string     // "": any
	TenantID    *uuid.UUID // nil: any
	Page
}

// Sagas changes sagas at the request of operators.
type Sagas struct {
	Store  SagaStore
	Kinds  []SagaKind
	Wake   func() // wakes the runner of this instance; may be nil
	Logger *slog.Logger
}

// Retry lets a saga run at once, without the conditions in despite. The table keeps the last reason and actor.
func (c *Sagas) Retry(ctx context.Context, req Request, id uuid.UUID, reason string, despite []string) (domain.Saga, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return domain.Saga{}, refusal
	}
	in := func(decide func(SagaTx) error) error { return c.Store.ChangeSagas(ctx, decide) }
	retried := false
	saga, err := Change(in, req, func(tx SagaTx) (domain.Saga, error) {
		s, err := tx.Saga(id)
		if err != nil || s == nil {
			return domain.Saga{}, OrRefuse(err, "saga_not_found", "", "Background process not found")
		}
		actor := req.By.ActsAs()
		if refusal := s.Retry(reason, actor.Type+"/"+actor.ID, despite); refusal != nil {
			return *s, refusal
		}
		if err := c.checkDespite(s.Kind, despite); err != nil {
			return *s, err
		}
		retried = true
		return *s, tx.SaveRetry(s)
	})
	if err != nil || !retried { // a repetition changes nothing
		return saga, err
	}
	c.Logger.InfoContext(ctx, "an operator retried a background process", "saga", saga.ID, "kind", saga.Kind, "key", saga.Key,
		"actor", saga.LastActor, "reason", reason, "despite", despite)
	if c.Wake != nil {
		c.Wake()
	}
	return saga, nil
}

// checkDespite refuses conditions that a kind always waits for.
func (c *Sagas) checkDespite(kind string, despite []string) error {
	var allowed []string
	if i := slices.IndexFunc(c.Kinds, func(k SagaKind) bool { return k.Name == kind }); i >= 0 {
		allowed = c.Kinds[i].Despite
	}
	for i, condition := range despite {
		if !slices.Contains(allowed, condition) {
			return domain.Refuse("despite_invalid", "/despite",
				"despite[%d] is no condition that a background process of the kind %s can waive; it has %q", i, kind, allowed)
		}
	}
	return nil
}

// SagaQueue leases sagas to runners. All times are of the database's clock. A step is a kind and a step of it, as SagaSteps writes them.
type SagaQueue interface {
	// NextSaga returns the time until the first open saga of the steps is due, 0 or less if it is due; false if no saga is open.
	NextSaga(ctx context.Context, steps []string) (wait time.Duration, found bool, err error)
	// LeaseSaga leases the saga that is due for the longest time; nil if no saga is due. Until the lease ends, no other instance runs it.
	LeaseSaga(ctx context.Context, steps []string, lease uuid.UUID, until time.Duration) (*domain.Saga, error)
	// RenewSaga extends a lease, from now on. It reports false if the lease is no longer held.
	RenewSaga(ctx context.Context, id, lease uuid.UUID, until time.Duration) (held bool, err error)
	// SettleSaga changes a saga and ends its lease, in one transaction. It returns nil if the lease is no longer held.
	SettleSaga(ctx context.Context, id, lease uuid.UUID, change func(s *domain.Saga, now time.Time)) (*domain.Saga, error)
}

// SagaSteps lists the steps of kinds.
func SagaSteps(kinds []SagaKind) (steps []string) {
	for _, k := range kinds {
		for _, step := range k.Steps {
			steps = append(steps, k.Name+"/"+step)
		}
	}
	return steps
}
