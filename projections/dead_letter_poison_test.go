package projections_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// panickingHandler folds, but panics at one event as the poison tests have them: outside
// of Try, as a handler with a fault does.
type panickingHandler struct {
	projections.Handler
	at *events.Position
}

func (p panickingHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result, error) {
	for i := range batch {
		if batch[i].Position == *p.at {
			panic("boom")
		}
	}
	return p.Handler.Apply(ctx, tx, g, batch)
}

// poisonCase is a consumer, good events of its topic, and events that its fold refuses.
type poisonCase struct {
	consumer func(*pipelineFixture) *consume.Runner
	good     func(tenant uuid.UUID, n int) events.Pending
	payload  string // of a poison event
	folded   func(s *pipelineFixture, tenant uuid.UUID) int64
}

func poisonCases() map[string]poisonCase {
	count := func(s *pipelineFixture, sql string, args ...any) (n int64) {
		s.Helper()
		s.must(s.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
		return n
	}
	return map[string]poisonCase{
		"validator": {
			func(s *pipelineFixture) *consume.Runner { return s.validating },
			func(tenant uuid.UUID, n int) events.Pending {
				return usageEvent(tenant, fmt.Sprint(n), "calls", 1, may)
			},
			`{"eventId":5}`,
			func(s *pipelineFixture, tenant uuid.UUID) int64 {
				return count(s, `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 2`, tenant)
			},
		},
		"aggregator": {
			func(s *pipelineFixture) *consume.Runner { return s.aggregating },
			func(tenant uuid.UUID, _ int) events.Pending { return verdict(tenant, "calls", 1) },
			`{"periodKey":"someday"}`,
			func(s *pipelineFixture, tenant uuid.UUID) int64 {
				return count(s, `SELECT coalesce(sum(applied_count), 0)::bigint FROM usage_aggregates WHERE tenant_id = $1`, tenant)
			},
		},
		"dead letters": {
			func(s *pipelineFixture) *consume.Runner { return s.lettering },
			func(tenant uuid.UUID, n int) events.Pending {
				return plainEvent(tenant, events.UsageRejected, events.Counts{Rejected: 1}, events.Rejected{RawPosition: int64(n + 1), EventID: fmt.Sprint(n), Code: "c", Reason: "r"})
			},
			`{"eventId":5}`,
			func(s *pipelineFixture, tenant uuid.UUID) int64 {
				return count(s, `SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND stage = 'VALIDATION'`, tenant)
			},
		},
	}
}

// poisonings make the event at a place of the log one that the consumer cannot
// fold, and return the code of its dead letter.
func (c *poisonCase) poisonings() map[string]func(*pipelineFixture, *consume.Runner, events.Position) string {
	alter := func(s *pipelineFixture, sql string, at events.Position, value any) {
		s.Helper()
		owner, err := pgx.Connect(context.Background(), s.url) // the service itself cannot alter the log
		s.must(err)
		_, err = owner.Exec(context.Background(), sql, at.Partition, at.Number, value)
		s.must(err)
		s.must(owner.Close(context.Background()))
	}
	return map[string]func(*pipelineFixture, *consume.Runner, events.Position) string{
		"a payload that does not fold": func(s *pipelineFixture, _ *consume.Runner, at events.Position) string {
			alter(s, `UPDATE event_log_rows SET body = $3::text::json WHERE partition = $1 AND position = $2`, at, c.payload)
			return projections.CodeFoldFailed
		},
		"an unknown subject": func(s *pipelineFixture, _ *consume.Runner, at events.Position) string {
			alter(s, `UPDATE event_log_rows SET subject = $3 WHERE partition = $1 AND position = $2`, at, 999)
			return projections.CodeFoldFailed
		},
		"a handler that panics": func(s *pipelineFixture, r *consume.Runner, at events.Position) string {
			r.Consumer.Handler = panickingHandler{r.Consumer.Handler, &at}
			return projections.CodeFoldPanicked
		},
	}
}

// A poison event is parked once, with its place on the broker, however often and in
// whatever batch it is delivered; its neighbours are folded.
func TestP2_PoisonIsParkedOnce(t *testing.T) {
	for consumer, c := range poisonCases() {
		for poison, make := range c.poisonings() {
			t.Run(consumer+", "+poison, func(t *testing.T) {
				c.run(t, func(s *pipelineFixture, r *consume.Runner, records []events.Record, i int, at events.Position) string {
					code := make(s, r, at)
					e := s.read(0, at.Partition, at.Number-1)[0]
					if e.Subject == 999 { // a newer binary published it
						records[i].Value = []byte(`{"eventType":"meterplex.usage.event.foretold","eventVersion":1}`)
						return code
					}
					again, err := codec.ToRecord(&e)
					s.must(err)
					records[i].Value = again.Value
					return code
				})
			})
		}
	}
}

const poisonNeighbours = 30

// run delivers good events with a poison one among them, several times.
func (c *poisonCase) run(t *testing.T, poison func(s *pipelineFixture, r *consume.Runner, records []events.Record, i int, at events.Position) string) {
	s := newPipelineFixture(t)
	s.payloads.Allow() // poison
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	tenant := tenantIn(4)
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	var pending []events.Pending
	for n := range poisonNeighbours + 1 {
		pending = append(pending, c.good(tenant, n))
	}
	at := s.append(pending...)
	r := c.consumer(s)
	records := s.topic(r.Consumer.Topic, 4, 0)
	for i := range records {
		records[i].Offset += 700
	}
	i := random.IntN(len(records))
	code := poison(s, r, records, i, at[i])
	for range 4 {
		shuffled := append([]events.Record(nil), records...)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for len(shuffled) > 0 {
			n := min(len(shuffled), 1+random.IntN(12))
			s.process(r, shuffled[:n])
			shuffled = shuffled[n:]
		}
	}
	s.drain(s.lettering)
	s.relayed(700) // the place of events read from the log is looked up
	if got := c.folded(s, tenant); got != poisonNeighbours {
		t.Errorf("%d of %d neighbours were folded", got, poisonNeighbours)
	}
	if got := s.checkpoint(r.Consumer.Name, 4); got < at[len(at)-1].Number {
		t.Errorf("the checkpoint stands at %d, the last record is %d", got, at[len(at)-1].Number)
	}
	s.parkedOnce(tenant, at[i], code, r.Consumer.Topic, records[i].Offset)
}

// parkedOnce checks an event's only dead letter.
func (s *pipelineFixture) parkedOnce(tenant uuid.UUID, at events.Position, code string, topic events.Topic, offset int64) {
	s.Helper()
	page, err := s.reads.DeadLetters(context.Background(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Stage: events.StageAggregation}, Limit: 10})
	s.must(err)
	if len(page.Data) != 1 {
		s.Fatalf("%d dead letters: %+v", len(page.Data), page.Data)
	}
	d := s.letter(page.Data[0].ID)
	if d.Code != code || d.SourcePosition != at || d.Topic != topic.Name() || d.KafkaPartition == nil || *d.KafkaPartition != at.Partition || d.Reason == "" {
		s.Errorf("%+v, want %s at %s of %s", d, code, at, topic.Name())
	}
	if d.KafkaOffset == nil || *d.KafkaOffset != offset {
		s.Errorf("the offset is %v, want %d", d.KafkaOffset, offset)
	}
	if details := map[string]any{}; json.Unmarshal(d.Details, &details) != nil || details["consumer"] == "" {
		s.Errorf("details %s", d.Details)
	}
}
