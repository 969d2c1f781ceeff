package consume_test

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
	. "github.com/meterplex/meterplex/internal/projectionstest"
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

func (p panickingHandler) Apply(ctx context.Context, tx pgx.Tx, g projections.Generation, batch []events.Envelope) (projections.Result,
	error) {
	for i := range batch {
		if batch[i].Position == *p.at {
			panic("boom")
		}
	}
	return p.Handler.Apply(ctx, tx, g, batch)
}

// poisonCase is a consumer, good events of its topic, and events that its fold refuses.
type poisonCase struct {
	consumer func(*Pipeline) *consume.Runner
	good     func(tenant uuid.UUID, n int) events.Pending
	payload  string // of a poison event
	folded   func(s *Pipeline, tenant uuid.UUID) int64
}

func poisonCases() map[string]poisonCase {
	count := func(s *Pipeline, sql string, args ...any) (n int64) {
		s.Helper()
		s.Must(s.Pool.QueryRow(context.Background(), sql, args...).Scan(&n))
		return n
	}
	return map[string]poisonCase{
		"validator": {
			func(s *Pipeline) *consume.Runner { return s.Validating },
			func(tenant uuid.UUID, n int) events.Pending {
				return Usage(tenant, fmt.Sprint(n), "calls", 1, May)
			},
			`{"eventId":5}`,
			func(s *Pipeline, tenant uuid.UUID) int64 {
				return count(s, `SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 2`, tenant)
			},
		},
		"aggregator": {
			func(s *Pipeline) *consume.Runner { return s.Aggregating },
			func(tenant uuid.UUID, _ int) events.Pending { return Verdict(tenant, "calls", 1) },
			`{"periodKey":"someday"}`,
			func(s *Pipeline, tenant uuid.UUID) int64 {
				return count(s, `SELECT coalesce(sum(applied_count), 0)::bigint FROM usage_aggregates WHERE tenant_id = $1`, tenant)
			},
		},
		"dead letters": {
			func(s *Pipeline) *consume.Runner { return s.Lettering },
			func(tenant uuid.UUID, n int) events.Pending {
				return Plain(tenant, events.UsageRejected, events.Counts{Rejected: 1},
					events.Rejected{RawPosition: int64(n + 1), EventID: fmt.Sprint(n), Code: "c", Reason: "r"})
			},
			`{"eventId":5}`,
			func(s *Pipeline, tenant uuid.UUID) int64 {
				return count(s, `SELECT count(*) FROM dead_letter_events WHERE tenant_id = $1 AND stage = 'VALIDATION'`, tenant)
			},
		},
	}
}

// poisonings make the event at a place of the log one that the consumer cannot
// fold, and return the code of its dead letter.
func (c *poisonCase) poisonings() map[string]func(*Pipeline, *consume.Runner, events.Position) string {
	alter := func(s *Pipeline, sql string, at events.Position, value any) {
		s.Helper()
		owner, err := pgx.Connect(context.Background(), s.URL) // the service itself cannot alter the log
		s.Must(err)
		_, err = owner.Exec(context.Background(), sql, at.Partition, at.Number, value)
		s.Must(err)
		s.Must(owner.Close(context.Background()))
	}
	return map[string]func(*Pipeline, *consume.Runner, events.Position) string{
		"a payload that does not fold": func(s *Pipeline, _ *consume.Runner, at events.Position) string {
			alter(s, `UPDATE event_log_rows SET body = $3::text::json WHERE partition = $1 AND position = $2`, at, c.payload)
			return projections.CodeFoldFailed
		},
		"an unknown subject": func(s *Pipeline, _ *consume.Runner, at events.Position) string {
			alter(s, `UPDATE event_log_rows SET subject = $3 WHERE partition = $1 AND position = $2`, at, 999)
			return projections.CodeFoldFailed
		},
		"a handler that panics": func(s *Pipeline, r *consume.Runner, at events.Position) string {
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
				c.run(t, func(s *Pipeline, r *consume.Runner, records []events.Record, i int, at events.Position) string {
					code := make(s, r, at)
					e := s.Read(0, at.Partition, at.Number-1)[0]
					if e.Subject == 999 { // a newer binary published it
						records[i].Value = []byte(`{"eventType":"meterplex.usage.event.foretold","eventVersion":1}`)
						return code
					}
					again, err := codec.ToRecord(&e)
					s.Must(err)
					records[i].Value = again.Value
					return code
				})
			})
		}
	}
}

const poisonNeighbours = 30

// run delivers good events with a poison one among them, several times.
func (c *poisonCase) run(t *testing.T, poison func(s *Pipeline, r *consume.Runner, records []events.Record, i int,
	at events.Position) string) {
	s := NewPipeline(t)
	s.Payloads.Allow() // poison
	random := rand.New(rand.NewPCG(tier.Seed(t), 0))
	tenant := TenantIn(4)
	s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
	var pending []events.Pending
	for n := range poisonNeighbours + 1 {
		pending = append(pending, c.good(tenant, n))
	}
	at := s.Append(pending...)
	r := c.consumer(s)
	records := s.Topic(r.Consumer.Topic, 4, 0)
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
			s.Process(r, shuffled[:n])
			shuffled = shuffled[n:]
		}
	}
	s.Drain(s.Lettering)
	s.Relayed(700) // the place of events read from the log is looked up
	if got := c.folded(s, tenant); got != poisonNeighbours {
		t.Errorf("%d of %d neighbours were folded", got, poisonNeighbours)
	}
	if got := s.Checkpoint(r.Consumer.Name, 4); got < at[len(at)-1].Number {
		t.Errorf("the checkpoint stands at %d, the last record is %d", got, at[len(at)-1].Number)
	}
	parkedOnce(s, tenant, at[i], code, r.Consumer.Topic, records[i].Offset)
}

// parkedOnce checks an event's only dead letter.
func parkedOnce(s *Pipeline, tenant uuid.UUID, at events.Position, code string, topic events.Topic, offset int64) {
	s.Helper()
	page, err := s.Reads.DeadLetters(context.Background(), Operator,
		deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Stage: events.StageAggregation},
			Limit: 10})
	s.Must(err)
	if len(page.Data) != 1 {
		s.Fatalf("%d dead letters: %+v", len(page.Data), page.Data)
	}
	d := s.Letter(page.Data[0].ID)
	if d.Code != code || d.SourcePosition != at || d.Topic != topic.Name() || d.KafkaPartition == nil ||
		*d.KafkaPartition != at.Partition || d.Reason == "" {
		s.Errorf("%+v, want %s at %s of %s", d, code, at, topic.Name())
	}
	if d.KafkaOffset == nil || *d.KafkaOffset != offset {
		s.Errorf("the offset is %v, want %d", d.KafkaOffset, offset)
	}
	if details := map[string]any{}; json.Unmarshal(d.Details, &details) != nil || details["consumer"] == "" {
		s.Errorf("details %s", d.Details)
	}
}

// Bytes that do not decode, or that name no position, are no event: whatever comes with them is folded once, and they make no dead letter.
func TestP2_UndecodableRecordsChangeNothing(t *testing.T) {
	for consumer, c := range poisonCases() {
		t.Run(consumer, func(t *testing.T) {
			s := NewLetters(t)
			tenant := TenantIn(4)
			s.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly))
			var pending []events.Pending
			for n := range poisonNeighbours {
				pending = append(pending, c.good(tenant, n))
			}
			at := s.Append(pending...)
			r := c.consumer(s.Pipeline)
			records := s.Topic(r.Consumer.Topic, 4, 0)
			records[3].Value = records[3].Value[:len(records[3].Value)/2]
			records[7].Value = []byte(`{"eventType":"meterplex.usage.event.recorded","eventVersion":99}`)
			for offset, value := range map[int64]string{700: "\x00\xff garbage", 701: "",
				702: `{"eventType":"meterplex.usage.event.recorded","eventVersion":1}`} {
				records = append(records, events.Record{Topic: r.Consumer.Topic, Partition: 4, Offset: offset, Value: []byte(value),
					Key: []byte("k")})
			}
			deliverOften(s.Pipeline, r, records)
			s.Drain(s.Lettering)
			if got := c.folded(s.Pipeline, tenant); got != poisonNeighbours || s.Checkpoint(r.Consumer.Name, 4) < at[len(at)-1].Number {
				t.Errorf("%d of %d were folded", got, poisonNeighbours)
			}
			if letters := append(s.LetterList(events.Platform, ""), s.LetterList(tenant, events.StatusResolved)...); len(letters) > 0 {
				t.Errorf("%+v", letters)
			}
		})
	}
}

// deliverOften hands records over in their order first, then shuffled.
func deliverOften(s *Pipeline, r *consume.Runner, records []events.Record) {
	for round := range 4 {
		shuffled := append([]events.Record(nil), records...)
		rand.Shuffle(min(round, 1)*len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for len(shuffled) > 0 {
			n := min(len(shuffled), 1+rand.IntN(12))
			s.Process(r, shuffled[:n])
			shuffled = shuffled[n:]
		}
	}
}
