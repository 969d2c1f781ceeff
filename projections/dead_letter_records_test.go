package projections_test

import (
	"math/rand/v2"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// A record whose bytes do not decode is read again from the log; a good event there
// is applied, and its dead letter is RESOLVED.
func TestP2_UndecodableRecordsAreReadFromTheLog(t *testing.T) {
	for consumer, c := range poisonCases() {
		for code, spoil := range map[string]func(r events.Record) events.Record{
			consume.CodeUndecodable: func(r events.Record) events.Record { r.Value = r.Value[:len(r.Value)/2]; return r },
			consume.CodeUnknownSubject: func(r events.Record) events.Record {
				r.Value = []byte(`{"eventType":"meterplex.usage.event.recorded","eventVersion":99}`)
				return r
			},
		} {
			t.Run(consumer+", "+code, func(t *testing.T) {
				s := newPipelineFixture(t)
				tenant := tenantIn(4)
				s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
				var pending []events.Pending
				for n := range poisonNeighbours {
					pending = append(pending, c.good(tenant, n))
				}
				at := s.append(pending...)
				r := c.consumer(s)
				records := s.topic(r.Consumer.Topic, 4, 0)
				i := rand.IntN(len(records))
				records[i] = spoil(records[i])
				records[i].Offset = 700
				deliverOften(s, r, records)
				s.drain(s.lettering)
				if got := c.folded(s, tenant); got != poisonNeighbours {
					t.Errorf("%d of %d were folded", got, poisonNeighbours)
				}
				page, err := s.reads.DeadLetters(t.Context(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant, Stage: events.StagePublishing}, Limit: 10})
				s.must(err)
				if len(page.Data) != 1 {
					t.Fatalf("%+v", page.Data)
				}
				d := page.Data[0]
				if d.Status != events.StatusResolved || d.Code != code || d.SourcePosition != at[i] || *d.KafkaPartition != 4 || *d.KafkaOffset != 700 || d.Topic != r.Consumer.Topic.Name() {
					t.Errorf("%+v", d)
				}
			})
		}
	}
}

// deliverOften hands records over in their order first, then shuffled.
func deliverOften(s *pipelineFixture, r *consume.Runner, records []events.Record) {
	for round := range 4 {
		shuffled := append([]events.Record(nil), records...)
		rand.Shuffle(min(round, 1)*len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for len(shuffled) > 0 {
			n := min(len(shuffled), 1+rand.IntN(12))
			s.process(r, shuffled[:n])
			shuffled = shuffled[n:]
		}
	}
}

// Unidentifiable bytes belong to no tenant: they are parked once, for the platform,
// and their neighbours are folded.
func TestP2_UnidentifiableRecordsAreParkedOnce(t *testing.T) {
	for consumer, c := range poisonCases() {
		t.Run(consumer, func(t *testing.T) {
			s := newRetryFixture(t)
			tenant := tenantIn(4)
			s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
			var pending []events.Pending
			for n := range poisonNeighbours {
				pending = append(pending, c.good(tenant, n))
			}
			at := s.append(pending...)
			r := c.consumer(s.pipelineFixture)
			records := s.topic(r.Consumer.Topic, 4, 0)
			for offset, value := range map[int64]string{700: "\x00\xff garbage", 701: "", 702: `{"eventType":"meterplex.usage.event.recorded","eventVersion":1}`} {
				records = append(records, events.Record{Topic: r.Consumer.Topic, Partition: 4, Offset: offset, Value: []byte(value), Key: []byte("k")})
			}
			deliverOften(s.pipelineFixture, r, records)
			s.drain(s.lettering)
			if got := c.folded(s.pipelineFixture, tenant); got != poisonNeighbours || s.checkpoint(r.Consumer.Name, 4) < at[len(at)-1].Number {
				t.Errorf("%d of %d were folded", got, poisonNeighbours)
			}
			strays := s.letterList(events.Platform, events.StatusFailed)
			if len(strays) != 3 {
				t.Fatalf("%+v", strays)
			}
			for _, d := range strays {
				if d.Code != consume.CodeUndecodable || *d.KafkaPartition != 4 || *d.KafkaOffset < 700 || d.Topic != r.Consumer.Topic.Name() {
					t.Errorf("%+v", d)
				}
				refusedWith(t, "dead_letter_not_retryable", s.retryNow(events.Platform, d.ID))
				s.must(s.discard(events.Platform, d.ID))
			}
			s.drain(s.lettering)
			if len(s.letterList(events.Platform, events.StatusDiscarded)) != 3 {
				t.Error("they cannot be discarded")
			}
			// The same place of a topic that was created again.
			s.process(r, []events.Record{{Topic: r.Consumer.Topic, Partition: 4, Offset: 700, Value: []byte("other garbage")}})
			s.drain(s.lettering)
			if got := s.letterList(events.Platform, events.StatusFailed); len(got) != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}
