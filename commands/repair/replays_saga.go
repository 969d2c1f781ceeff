package repair

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// SagaReplay is the kind of the sagas that publish ranges of the log again.
const SagaReplay = "replay"

const stepPublish = "publish"

// startRange starts the saga of a range. The id of the replay is its key.
func startRange(tx commands.SagaStarter, id, replay uuid.UUID) error {
	_, _, err := tx.StartSaga(domain.SagaStart{ID: id, Kind: SagaReplay, TenantID: events.Platform, Key: replay.String(),
		FirstStep: stepPublish})
	return err
}

// RangeKind returns the kind of the sagas that publish ranges again. publish publishes the rest of one, and returns the reason if the
// broker refuses a record for ever.
func (c *Replays) RangeKind(publish func(ctx context.Context, replay uuid.UUID) (refused string, err error)) commands.SagaKind {
	run := func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
		id, err := uuid.Parse(s.Key)
		if err != nil {
			return domain.SagaResult{}, fmt.Errorf("the key %q of a replay is no id", s.Key)
		}
		refused, err := publish(ctx, id)
		if err != nil {
			return domain.SagaResult{}, err
		}
		return c.endRange(ctx, id, refused)
	}
	return commands.SagaKind{Name: SagaReplay, Steps: []string{stepPublish}, Run: run}
}

// endRange ends a range that is published, or refused. A step whose result was lost is repeated and returns the end that it recorded.
func (c *Replays) endRange(ctx context.Context, id uuid.UUID, refused string) (domain.SagaResult, error) {
	req := relayRequest()
	ended, err := commands.Change(c.changeOf(ctx, false), req, func(tx ReplayTx) (*Replay, error) {
		r, err := tx.Replay(id)
		switch {
		case err != nil:
			return nil, err
		case r == nil:
			return nil, fmt.Errorf("there is no replay %s", id)
		case r.State != ReplayRunning:
			return r, nil
		}
		r.State, r.Failure = ReplayDone, refused
		if refused != "" {
			r.State = ReplayFailed
		}
		return r, c.endIn(tx, &req, id, r.State, refused, nil, events.ReplayDone, r.ended(refused))
	})
	switch {
	case err != nil:
		return domain.SagaResult{}, err
	case ended.State == ReplayFailed:
		return domain.SagaFails(ended.Failure), nil
	}
	return domain.SagaDone(), nil
}
