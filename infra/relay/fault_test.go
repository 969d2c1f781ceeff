package relay_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestP11_AnOutageOfTheBrokerCostsLatencyOnly(t *testing.T) {
	w := newRelayFixture(t)
	cfg := w.cfg
	cfg.DeliveryTimeout = 2 * time.Second
	r := w.relayWith("one", cfg)
	var failed int
	r.Observe.Failed = func(error) { failed++ }
	r.MaxInFlight = 1 // only one goroutine calls the hook
	stop := w.start(r)
	all := tenantsOfAllPartitions()
	w.appendUsage(2, all...)
	w.awaitDrained()
	broker := kafkatest.Broker(t)
	must.OK(t, broker.Kill())
	away := time.Now()
	w.until("the cursors show the outage", func() bool {
		w.appendUsage(2, all...)
		time.Sleep(50 * time.Millisecond)
		return time.Since(away) > 3*time.Second && // longer than the longest publish call
			w.int(`SELECT count(*) FROM relay_cursors WHERE attempts > 0 AND last_error IS NOT NULL AND last_attempt_at IS NOT NULL`) > 0
	})
	must.OK(t, broker.Restart(context.Background()))
	back := time.Now()
	w.awaitDrained()
	t.Logf("drained %v after the broker was back", time.Since(back))
	stop()
	if failed == 0 {
		t.Error("no publish failed: the outage tested nothing")
	}
	w.checkTopic(events.TopicUsageRaw)
	if n := w.int(`SELECT (SELECT count(*) FROM withheld_records) + (SELECT sum(attempts) FROM relay_cursors)`); n != 0 {
		t.Errorf("%d events withheld or attempts left over", n)
	}
}

func TestP2_DatabaseSessionsAreCutWhileCursorsMove(t *testing.T) {
	tier.AtSize(t)
	w := newRelayFixture(t)
	all := tenantsOfAllPartitions()
	for range 10 {
		w.appendUsage(30, all...)
	}
	r := w.relay("one")
	pool := openPool(t, w.url)
	r.Pool, r.Log = pool, openLog(t, pool, nil)
	r.MaxEvents = 200
	stop := w.start(r)
	admin, err := pgx.Connect(context.Background(), localtest.Postgres(t).AdminURL())
	must.OK(t, err)
	defer admin.Close(context.Background())
	cut := int64(0)
	for rounds := 0; rounds < 15 || cut == 0 && rounds < 3000; rounds++ {
		time.Sleep(20 * time.Millisecond)
		if cut == 0 && rounds%15 == 14 {
			w.appendUsage(30, all...) // the relay had not begun, or was done already
		}
		var n int64
		err := admin.QueryRow(context.Background(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = $1 AND query LIKE '%relay_cursors%'`, pool.Config().ConnConfig.Database).Scan(&n)
		must.OK(t, err)
		cut += n
	}
	w.appendUsage(1, all...) // so that the relay has live connections when it is stopped
	w.awaitDrained()
	stop()
	if cut == 0 {
		t.Error("no session was terminated: the test proves nothing")
	}
	w.checkTopic(events.TopicUsageRaw)
}

// incompressible returns text that does not compress.
func incompressible(size int) string {
	b := make([]byte, size)
	rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// limitTopic creates a topic with a limit on the batch size, before the other topics are created. A limit
// set later would take effect with a delay.
func limitTopic(t testing.TB, cfg kafka.Config, topic events.Topic, bytes string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...))
	must.OK(t, err)
	defer client.Close()
	limit := map[string]*string{"max.message.bytes": &bytes}
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), events.Partitions, 1, limit, cfg.TopicPrefix+topic.Name()); err != nil {
		t.Fatal(err)
	}
}

func TestP3_UnpublishableEventsAreWithheldInPlace(t *testing.T) {
	t.Parallel()
	w := newRelayFixture(t, func(cfg kafka.Config) { limitTopic(t, cfg, events.TopicUsageRaw, "20000") })
	all := tenantsOfAllPartitions()
	large := w.usage(all[7], 10)
	large.Payload, _ = json.Marshal(events.Usage{EventID: "large", Feature: "f", Amount: 1, Type: "usage", Source: incompressible(30_000)})
	retried := w.usage(all[7], 10)
	letterID := newID()
	retried.Subject, retried.Counts = events.UsageRetried, events.Counts{}
	retried.Payload, _ = json.Marshal(events.Retried{RawPosition: 3, DeadLetterID: letterID, Attempt: 2,
		Usage: json.RawMessage(`{"source":"` + incompressible(30_000) + `"}`)})
	w.appendUsage(10, all...)
	first := w.append(large)[0]
	w.appendUsage(10, all...)
	second := w.append(retried)[0]
	w.appendUsage(10, all...)

	stop := w.start(w.relay("one"))
	w.awaitDrained()
	if got := w.withheld(); !got[first.Number] || !got[second.Number] {
		t.Fatalf("the cursors passed %s and %s, which are not published; withheld are %v", first, second, got)
	}
	w.until("the letters are published too", func() bool {
		return w.int(`SELECT count(*) FROM event_log_rows l JOIN relay_cursors c USING (partition) WHERE l.subject = $1
			AND l.position <= c.position`, events.PublishFailed) == 2
	})
	stop()
	w.checkTopic(events.TopicUsageRaw)
	w.checkTopic(events.TopicUsageDeadLetter)
	if n := w.int(`SELECT sum(parked) FROM log_heads`); n != 2 {
		t.Errorf("parked is %d, want 2", n)
	}
	letters := w.letters()
	if len(letters) != 2 || len(w.withheld()) != 2 || !w.withheld()[first.Number] || !w.withheld()[second.Number] {
		t.Fatalf("letters %+v, withheld %v", letters, w.withheld())
	}
	for _, l := range letters {
		if l.Stage != events.StagePublishing || l.Topic != "usage.raw" {
			t.Errorf("letter %+v", l)
		}
	}
	// The keys of the follow-ups of a dead letter decide whether it may be retried: this retry failed.
	if n := w.int(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND dedupe_key = $2`, all[7],
		events.KeyFailedAgain(letterID, 2)); n != 1 {
		t.Errorf("%d events record that retry 2 of the letter failed, want 1", n)
	}
	if a, b := letters[0], letters[1]; a.SourcePosition != first.Number || a.Attempt != 0 || b.SourcePosition != second.Number ||
		b.Attempt != 2 || b.DeadLetterID != letterID {
		t.Errorf("letters %+v", letters)
	}
}

func (w *relayFixture) letters() (letters []events.Failed) {
	for _, e := range w.logged() {
		if e.Subject != events.PublishFailed {
			continue
		}
		var l events.Failed
		if err := json.Unmarshal(e.Payload, &l); err != nil || e.CausationID != l.SourceEventID {
			w.t.Errorf("letter %s: %v, caused by %s", e.Payload, err, e.CausationID)
		}
		if e.Residency != "eu-relay-1" {
			w.t.Errorf("letter %+v has the residency %q, not that of its event", l, e.Residency)
		}
		if l.Attempt == 0 && l.DeadLetterID != e.EventID {
			w.t.Errorf("letter %+v is not its own dead letter", l)
		}
		letters = append(letters, l)
	}
	return letters
}

func (w *relayFixture) withheld() map[int64]bool {
	at := map[int64]bool{}
	for _, e := range w.logged() {
		if e.Withheld {
			at[e.Position.Number] = true
		}
	}
	return at
}

// refusingPublisher permanently refuses records of a subject until over is closed.
type refusingPublisher struct {
	message.Publisher
	subject events.Subject
	over    chan struct{}
	tries   chan struct{}
}

var errRefused = errors.New("refused")

func (p *refusingPublisher) Publish(topic string, msgs ...*message.Message) error {
	info, _ := p.subject.Info()
	records, err := watermill.ToPublish(info.Topic, msgs, false)
	if err != nil {
		return err
	}
	for i := range records {
		select {
		case <-p.over:
			continue
		default:
		}
		if string(records[i].Header(events.HeaderSubject)) != info.Name() {
			continue
		}
		select {
		case p.tries <- struct{}{}:
		default:
		}
		failed := []watermill.FailedRecord{{Index: i, Permanent: true, Err: errRefused}}
		for j := i + 1; j < len(records); j++ {
			failed = append(failed, watermill.FailedRecord{Index: j, Err: watermill.ErrBehind})
		}
		if i > 0 {
			if err := p.Publisher.Publish(topic, watermill.Outgoing(msgs[0].Context(), records[:i])); err != nil {
				return err
			}
		}
		return watermill.NewPublishError(failed, len(records))
	}
	return p.Publisher.Publish(topic, msgs...)
}

func TestLetterAboutALetterIsNeverWritten(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newRelayFixture(t)
	r := w.relay("one")
	pipe := &refusingPublisher{r.Publisher, events.PublishFailed, make(chan struct{}), make(chan struct{})}
	r.Publisher = pipe
	w.start(r)
	letter := w.usage(newID(), 10)
	letter.Subject, letter.Counts = events.PublishFailed, events.Counts{}
	letter.Payload, _ = json.Marshal(events.Failed{DeadLetterID: newID(), SourcePosition: 1, Stage: events.StagePublishing})
	w.append(letter)
	for range 7 { // more than maxTries
		<-pipe.tries
	}
	if n := w.int(`SELECT count(*) FROM event_log_rows`); n != 1 {
		t.Errorf("%d events in the log, want the letter alone", n)
	}
	close(pipe.over)
	w.awaitDrained()
	w.checkTopic(events.TopicUsageDeadLetter)
}

func TestSubjectThatIsNotRegisteredIsWithheld(t *testing.T) {
	t.Parallel()
	w := newRelayFixture(t)
	tenant := newID()
	w.appendUsage(3, tenant)
	const unknown = `WITH h AS (
 UPDATE log_heads SET position = position + 1, topic_positions[6] = position + 1 WHERE partition = $1 RETURNING *
) INSERT INTO event_log_rows SELECT h.position, 0, now(), now(), $3, $2, NULL, NULL, h.epoch, 1, h.partition, 6, 99, 'e/x', NULL, '{}', NULL
FROM h`
	if _, err := w.pool.Exec(context.Background(), unknown, events.PartitionOf(tenant), tenant, uuid.New()); err != nil {
		t.Fatal(err)
	}
	w.appendUsage(3, tenant)
	r := w.patientRelay("one") // a lost lease would restart the tries
	refused := 0
	r.MaxInFlight = 1
	r.Observe.Refused = func(_ events.Topic, registry bool) {
		if registry {
			refused++
		}
	}
	stop := w.start(r)
	w.awaitDrained()
	stop()
	if n := len(w.letters()); n != 1 { // no relay passes an event without a dead letter
		t.Fatalf("the event was passed with %d letters", n)
	}
	l := w.letters()[0]
	if l.Code != "subject_not_registered" || l.SourcePosition != 4 || l.Topic != "meterplex.catalogue" || !w.withheld()[4] || refused != 5 {
		t.Errorf("letter %+v, withheld %v, refused %d times", l, w.withheld(), refused)
	}
	if n := w.int(`SELECT sum(parked) FROM log_heads`); n != 0 {
		t.Errorf("parked is %d, want 0: the event was never on its way to the aggregates", n)
	}
	w.checkTopic(events.TopicUsageRaw)
}
