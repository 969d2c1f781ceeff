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

// RangeKind returns the kind of the sagas that publish ranges again. publish publishes what is left of one, and returns the reason if the
// broker refuses a record of a topic for ever.
func (c *Replays) RangeKind(publish func(ctx context.Context, replay uuid.UUID) (topic events.Topic, refused string,
	err error)) commands.SagaKind {
	run := func(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
		id, err := uuid.Parse(s.Key)
		if err != nil {
			return domain.SagaResult{}, fmt.Errorf("the key %q of a replay is no id", s.Key)
		}
		topic, refused, err := publish(ctx, id)
		switch {
		case err != nil:
			return domain.SagaResult{}, err
		case refused != "":
			return domain.SagaFails(refused), c.Fail(ctx, id, topic.Name(), refused)
		}
		return domain.SagaDone(), c.EndRanges(ctx)
	}
	return commands.SagaKind{Name: SagaReplay, Steps: []string{stepPublish}, Run: run}
}
