package consume_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/relay"
	"github.com/meterplex/meterplex/infra/watermill"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// refusingPipe is a pipe that refuses some records and stops each partition there.
type refusingPipe struct {
	mu      sync.Mutex
	refused map[events.Position]bool
}

func (p *refusingPipe) refuse(at ...events.Position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range at {
		p.refused[a] = true
	}
}

func (p *refusingPipe) Close() error { return nil }

func (p *refusingPipe) Publish(topic string, msgs ...*message.Message) error {
	number, _ := events.TopicOf(topic)
	records, err := watermill.ToPublish(number, msgs, false)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed []watermill.FailedRecord
	stopped := map[int16]bool{}
	for i := range records {
		records[i].Offset = -1
		at, err := codec.PositionOf(&records[i])
		switch {
		case err != nil:
			return err
		case stopped[at.Position.Partition]:
			failed = append(failed, watermill.FailedRecord{Index: i, Err: watermill.ErrBehind})
		case p.refused[at.Position] && len(records[i].Value) > 0:
			stopped[at.Position.Partition] = true
			failed = append(failed, watermill.FailedRecord{Index: i, Permanent: true, Err: errors.New("refused")})
		}
	}
	return watermill.NewPublishError(failed, len(records))
}

// withheldFixture is a rebuild fixture with a relay whose pipe refuses events chosen by the test.
type withheldFixture struct {
	*Letters
	yard *Rebuilds
	pipe *refusingPipe
}

func newWithheldFixture(t testing.TB) *withheldFixture {
	s := NewLetters(t)
	return &withheldFixture{s, RebuildsOf(s.Pipeline), &refusingPipe{refused: map[events.Position]bool{}}}
}

// appendTwo makes two usage events and returns a topic's consumer, which has not read
// them, and the position of the first one there.
func (s *withheldFixture) appendTwo(topic events.Topic) (consumer *consume.Runner, at events.Position) {
	s.Helper()
	tenant := NewID()
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	at = s.Append(Usage(tenant, "a", "calls", 1, May), Usage(tenant, "b", "calls", 1, May))[0]
	if topic == events.TopicUsageValidated {
		s.Drain(s.Validating)
		return s.Aggregating, s.verdictOf(tenant, at)
	}
	return s.Validating, at
}

// publishLog lets a relay publish the whole log. No event may be missing meanwhile.
func (s *withheldFixture) publishLog() {
	s.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute) // the bound only keeps a broken build from hanging
	r := &relay.Relay{Pool: s.Pool, Log: s.EventLog, Appender: s.EventLog, Publisher: s.pipe, Instance: "test", NewID: NewID, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler)}
	var g errgroup.Group
	g.Go(func() error { return r.Run(ctx) })
	for left := 1; left > 0; time.Sleep(25 * time.Millisecond) {
		s.holds()
		s.Must(s.Pool.QueryRow(ctx,
			`SELECT count(*) FROM log_heads h JOIN relay_cursors c USING (partition) WHERE h.position <> c.position`).Scan(&left))
	}
	stop()
	s.Must(g.Wait())
}

// publishAgain lets the relay publish all events again.
func (s *withheldFixture) publishAgain() {
	s.Helper()
	s.Must(Second(s.Pool.Exec(context.Background(), `UPDATE relay_cursors SET position = 0, fence = fence + 1, owner = NULL,
		lease_until = '-infinity'`)))
}

func (s *withheldFixture) holds() audit.Identity {
	s.Helper()
	i, err := s.Reads.Identity(context.Background())
	s.Must(err)
	if !i.Holds {
		s.Fatalf("the identity does not hold: %+v", i.Total)
	}
	return i
}

// checkOutcomes checks the outcome of events, live and after a rebuild.
func (s *withheldFixture) checkOutcomes(to audit.Terms) {
	s.Helper()
	s.settle()
	got := s.holds().Total
	if got.Validated = 0; got != to {
		s.Errorf("%+v, want %+v", got, to)
	}
	r := s.yard.Rebuilt(repair.StartRebuild{Projection: projections.ProjectionUsage})
	d := s.yard.Diff(rebuild.DiffQuery{RebuildID: r.ID, Totals: true, Limit: 10})
	if !d.Conservation.Holds || len(d.Data) != 0 {
		s.Errorf("a rebuild comes to something else: %+v %+v", d.Conservation, d.Data)
	}
	s.Must(Second(s.yard.Commands.Abandon(context.Background(), commands.Request{By: OperatorKey}, r.ID, "done")))
}

func (s *withheldFixture) settle() {
	s.Drain(s.Validating, s.Aggregating, s.Executing, s.Lettering, s.Entitling, s.Validating, s.Aggregating, s.Lettering, s.Entitling)
}

func (s *withheldFixture) verdictOf(tenant uuid.UUID, raw events.Position) events.Position {
	s.Helper()
	v := events.Position{Partition: raw.Partition}
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT position FROM event_log WHERE partition = $1 AND tenant_id = $2
		AND dedupe_key = $3`,
		raw.Partition, tenant, events.KeyValidated(raw.Number)).Scan(&v.Number))
	return v
}

// An event that its consumer has already read, by a gap or before the relay was moved
// back, is not parked when it can no longer be published.
func TestP3_WithheldAfterItWasReadCountsOnce(t *testing.T) {
	for name, c := range map[string]struct {
		topic events.Topic
		which int // the second one is where its consumer's checkpoint stands
	}{
		"recorded": {events.TopicUsageRaw, 0}, "the last recorded": {events.TopicUsageRaw, 1},
		"a verdict": {events.TopicUsageValidated, 0}, "the last verdict": {events.TopicUsageValidated, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, topic := newWithheldFixture(t), c.topic
			tenant := NewID()
			s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
			at := s.Append(Usage(tenant, "a", "calls", 1, May), Usage(tenant, "b", "calls", 1, May))[c.which]
			s.settle()
			if topic == events.TopicUsageValidated {
				at = s.verdictOf(tenant, at)
			}
			s.publishLog()
			s.pipe.refuse(at)
			for range 2 {
				s.publishAgain()
				s.publishLog()
				s.checkOutcomes(audit.Terms{Accepted: 2, Applied: 2})
			}
			var withheld, letters int
			s.Must(s.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM withheld_records), (SELECT count(*) FROM event_log
				WHERE subject = $1)`, events.PublishFailed).Scan(&withheld, &letters))
			if withheld != 1 || letters != 0 || len(s.Failed(tenant)) != 0 {
				t.Errorf("%d withheld, %d letters: nothing is to be retried", withheld, letters)
			}
		})
	}
}

// A withheld event is not folded, even if its consumer has the whole record: one
// published before but not recorded as such, or one read from the log.
func TestP3_ReadAfterItWasWithheldCountsOnce(t *testing.T) {
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated} {
		t.Run(topic.Name(), func(t *testing.T) {
			s := newWithheldFixture(t)
			consumer, at := s.appendTwo(topic)
			whole := s.Topic(topic, at.Partition, 0)
			s.pipe.refuse(at)
			s.publishLog()
			s.Process(consumer, whole)
			s.checkOutcomes(audit.Terms{Accepted: 2, Applied: 1, Parked: 1})
			s.publishAgain()
			s.publishLog()
			s.Process(consumer, s.Topic(topic, at.Partition, 0))
			s.checkOutcomes(audit.Terms{Accepted: 2, Applied: 1, Parked: 1})
		})
	}
}

// A database restored to before an event was withheld has no dead letter for it,
// although its stand-in is on the topic: the event is folded from the log, and stays
// folded when the relay withholds it again.
func TestP3_StandInThatTheDatabaseDoesNotKnowIsReadFromTheLog(t *testing.T) {
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated} {
		t.Run(topic.Name(), func(t *testing.T) {
			s := newWithheldFixture(t)
			consumer, at := s.appendTwo(topic)
			records := s.Topic(topic, at.Partition, 0)
			i := slices.IndexFunc(records, func(r events.Record) bool { return placeOf(s, &r) == at })
			records[i].Value = nil
			records[i].Headers = append(records[i].Headers, events.Header{Key: events.HeaderWithheld, Value: []byte("1")})
			s.Process(consumer, records)
			s.pipe.refuse(at)
			s.publishLog()
			s.checkOutcomes(audit.Terms{Accepted: 2, Applied: 2})
		})
	}
}

func placeOf(s *withheldFixture, r *events.Record) events.Position {
	s.Helper()
	at, err := codec.PositionOf(r)
	s.Must(err)
	return at.Position
}

// A retry that is withheld after its consumer read it has had its effect: the dead
// letter cannot be retried to count again.
func TestP2_RetryThatIsWithheldAfterItWasReadCountsOnce(t *testing.T) {
	for _, topic := range []events.Topic{events.TopicUsageRaw, events.TopicUsageValidated} {
		t.Run(topic.Name(), func(t *testing.T) {
			s := newWithheldFixture(t)
			tenant := NewID()
			s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
			at := s.Append(Usage(tenant, "a", "calls", 1, May))[0]
			if topic == events.TopicUsageValidated {
				s.Drain(s.Validating)
				at = s.verdictOf(tenant, at)
			}
			s.pipe.refuse(at)
			s.publishLog()
			s.checkOutcomes(audit.Terms{Accepted: 1, Parked: 1})
			retry := func() {
				_, err := s.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
				s.Must(err)
				s.settle()
			}
			retry() // the consumers read it from the log before the relay does
			var again events.Position
			s.Must(s.Pool.QueryRow(t.Context(), `SELECT partition, position FROM event_log WHERE subject = ANY ($1) ORDER BY position DESC
				LIMIT 1`,
				[]int16{int16(events.UsageRetried), int16(events.Reaggregated)}).Scan(&again.Partition, &again.Number))
			s.pipe.refuse(again)
			s.publishLog()
			s.checkOutcomes(audit.Terms{Accepted: 1, Applied: 1})
			retry()
			s.publishLog()
			s.checkOutcomes(audit.Terms{Accepted: 1, Applied: 1})
		})
	}
}

// Consumers and the relay meet at the same events.
func TestP3_IdentityHoldsWhileRecordsAreWithheldAndRead(t *testing.T) {
	s := newWithheldFixture(t)
	var tenants []uuid.UUID
	for p := range int16(6) {
		tenant := TenantIn(p)
		tenants = append(tenants, tenant)
		s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	}
	for range 2 {
		for _, tenant := range tenants {
			s.pipe.refuse(s.Append(Usage(tenant, NewID().String(), "calls", 1, May), Usage(tenant, NewID().String(), "calls", 1, May))[1])
		}
	}
	s.ReadAtMost(s.Validating, 0, 1<<20) // of this one all is read before; the relay may be faster in the others
	var g errgroup.Group
	ctx, stop := context.WithCancel(context.Background())
	for _, r := range []*consume.Runner{s.Validating, s.Aggregating} {
		g.Go(func() error {
			for ctx.Err() == nil { // piece by piece, as they would from a pipe with gaps
				for _, tenant := range tenants {
					if p := events.PartitionOf(tenant); p%2 == 0 || s.relayedPast(r.Consumer.Name, p) {
						s.ReadAtMost(r, p, 1)
					}
				}
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		})
	}
	s.publishLog()
	stop()
	s.Must(g.Wait())
	s.settle()
	total := s.holds().Total
	if total.Accepted != 24 || total.Applied+total.Parked != 24 || total.Applied == 12 || total.Parked == 0 {
		t.Errorf("of 12 that were withheld some must have been read before, others not: %+v", total)
	}
}

// relayedPast says whether the relay is beyond a consumer.
func (s *withheldFixture) relayedPast(consumer string, partition int16) (past bool) {
	s.Helper()
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT c.position > k.position FROM relay_cursors c JOIN consumer_checkpoints k
		USING (partition)
		WHERE k.consumer = $1 AND k.joined AND c.partition = $2`, consumer, partition).Scan(&past))
	return past
}

// P11: a verdict that the pipe refused is in no hour.
func TestP11_HoursLeaveOutWithheldVerdicts(t *testing.T) {
	s := newWithheldFixture(t)
	_, at := s.appendTwo(events.TopicUsageValidated)
	s.Drain(s.Summing)
	s.pipe.refuse(at)
	s.publishLog()
	s.settle()
	s.Drain(s.Summing)
	if s.CheckHours() != 1 {
		t.Error("the other verdict is not counted")
	}
}
