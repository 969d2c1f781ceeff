package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
)

// partlyUnreadable is a log in which one partition cannot be read until it is restored.
type partlyUnreadable struct {
	relay.ReplayLog
	partition int16
	restored  atomic.Bool
}

func (l *partlyUnreadable) ReadTopic(ctx context.Context, s events.Stretch, topic events.Topic) ([]events.Envelope, error) {
	if s.Partition == l.partition && !l.restored.Load() {
		return nil, errors.New("unreadable")
	}
	return l.ReplayLog.ReadTopic(ctx, s, topic)
}

func (w *relayFixture) replayAll() uuid.UUID {
	w.t.Helper()
	r, err := w.replays().Range(w.t.Context(), commands.Request{By: operator},
		repair.ReplayRange{Topic: "usage.raw", FromTime: time.Unix(0, 0), Reason: "x"})
	must.OK(w.t, err)
	return r.ID
}

// A partition that cannot be replayed holds up neither the other partitions nor other replays, also with one instance.
func TestAPartitionThatFailsHoldsUpNoOther(t *testing.T) {
	w := newRelayFixture(t)
	all := tenantsOfAllPartitions()
	w.appendUsage(3, all...)
	stop := w.start(w.patientRelay("a"))
	w.awaitDrained()
	defer stop()
	first := w.replayAll()
	w.tenant(all[9])
	other, err := w.replays().Range(t.Context(), commands.Request{By: operator}, repair.ReplayRange{Topic: "usage.raw", TenantID: all[9],
		FromTime: time.Unix(0, 0), Reason: "x"})
	must.OK(t, err)
	log := &partlyUnreadable{ReplayLog: w.log, partition: 2}
	runner := w.replayer(w.relay("").Publisher, log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	w.until("one partition of one replay is left", func() bool {
		return w.int(`SELECT count(*) FROM replay_units WHERE cursor < upto`) == 1 &&
			w.int(`SELECT count(*) FROM replays WHERE id = $1 AND state = 'DONE'`, other.ID) == 1
	})
	log.restored.Store(true)
	w.until("the replay ends", func() bool { return w.int(`SELECT count(*) FROM replays WHERE id = $1 AND state = 'DONE'`, first) == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// refusedTenant is a publisher that permanently refuses the records of a tenant.
type refusedTenant struct {
	message.Publisher
	id uuid.UUID
}

func (p refusedTenant) Publish(topic string, msgs ...*message.Message) error {
	records, err := watermill.ToPublish(events.TopicUsageRaw, msgs, false)
	if err != nil {
		return err
	}
	if string(records[0].Key) == p.id.String() {
		return permanentlyRefusingPublisher{}.Publish(topic, msgs...)
	}
	return p.Publisher.Publish(topic, msgs...)
}

// A record that the broker refuses ends a replay. Its end counts the records of all its partitions.
func TestAFailedReplayCountsAllItsRecords(t *testing.T) {
	w := newRelayFixture(t)
	all := tenantsOfAllPartitions()
	w.appendUsage(2, all...)
	stop := w.start(w.patientRelay("a"))
	w.awaitDrained()
	defer stop()
	id := w.replayAll()
	got := w.runReplay(id, w.replayer(refusedTenant{w.relay("").Publisher, all[5]}, w.log))
	for _, e := range w.logged() {
		if e.Subject != events.ReplayDone {
			continue
		}
		var end events.ReplayEnd
		if err := json.Unmarshal(e.Payload, &end); err != nil || end.ReplayID != id || end.Records != 5*2 ||
			got.State != repair.ReplayFailed || got.Failure == "" {
			t.Errorf("%s, recorded %+v: %v", got.State, end, err)
		}
		return
	}
	t.Error("no end is recorded")
}

// A replay that the broker refused has failed, also if the instance died before it saved the result of the step.
func TestARepeatedStepOfARefusedReplayFails(t *testing.T) {
	w := newRelayFixture(t)
	all := tenantsOfAllPartitions()
	w.appendUsage(2, all...)
	stop := w.start(w.patientRelay("a"))
	w.awaitDrained()
	defer stop()
	id := w.replayAll()
	replayer := &relay.Replayer{Pool: w.pool, Log: w.log, Publisher: refusedTenant{w.relay("").Publisher, all[5]}}
	kind := w.replays().RangeKind(replayer.Publish)
	for run := range 2 {
		got, err := kind.Run(t.Context(), &domain.Saga{Kind: repair.SagaReplay, Key: id.String()})
		if err != nil || got.End != domain.SagaFailed || got.Reason == "" {
			t.Errorf("run %d: %+v, %v", run, got, err)
		}
	}
}
