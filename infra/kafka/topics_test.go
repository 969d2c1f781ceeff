package kafka_test

import (
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
)

// TestLastRecords reads the last records of two partitions, among empty partitions and one with
// a record that has no log position.
func TestLastRecords(t *testing.T) {
	cfg := config(t)
	admin := ensure(t, cfg)
	if records, err := admin.LastRecords(t.Context()); err != nil || len(records) != 0 {
		t.Fatalf("empty topics: %+v, %v", records, err)
	}
	log := uuid.Must(uuid.NewV7())
	record := func(partition int16, n int64) events.Record {
		e := events.Envelope{
			LogID: log, Vocabulary: events.CurrentVocabulary(), Residency: events.ResidencyUnspecified, EventID: uuid.Must(uuid.NewV7()),
			Subject: events.UsageRecorded, TenantID: uuid.Must(uuid.NewV7()), Epoch: 7,
			Position: events.Position{Partition: partition, Number: n}, Previous: n - 1, DedupeKey: "u/a", Payload: []byte(`{}`),
			OccurredAt: time.Now(), RecordedAt: time.Now(),
		}
		r, err := codec.ToRecord(&e)
		must.OK(t, err)
		return r
	}
	pub := newPublisher(t, cfg)
	defer pub.Close()
	strange := events.Record{Topic: events.TopicUsageRaw, Partition: 9, Value: []byte("of no log")}
	must.OK(t, pipetest.Publish(t.Context(), pub, []events.Record{record(3, 1), record(3, 2), record(31, 40), strange}))
	records, err := admin.LastRecords(t.Context())
	must.OK(t, err)
	found := map[events.Position]bool{}
	for _, p := range records {
		found[p.Position] = p.Log == log && p.Epoch == 7
	}
	if len(records) != 2 || !found[events.Position{Partition: 3, Number: 2}] || !found[events.Position{Partition: 31, Number: 40}] {
		t.Errorf("the last records are %+v", records)
	}
}

// The broker's setting counts; a topic without expiry by age, and one that is gone, have no retention.
func TestRetentionIsThatOfTheTopics(t *testing.T) {
	cfg := kafka.Config{Brokers: kafkatest.Broker(t).Brokers(), TopicPrefix: kafkatest.TopicPrefix(t), Logger: logger()}
	admin := newAdmin(t, cfg)
	must.OK(t, admin.Ensure(t.Context()))
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.DisableClientMetrics())
	must.OK(t, err)
	defer client.Close()
	direct := kadm.NewClient(client)
	want := map[events.Topic]time.Duration{}
	for _, info := range events.Topics() {
		want[info.Topic] = events.TopicRetention
	}
	for topic, set := range map[events.Topic][2]string{
		events.TopicUsageRaw: {"retention.ms", "3600000"}, events.TopicUsageValidated: {"retention.ms", "-1"},
		events.TopicBilling: {"cleanup.policy", "compact"}, events.TopicCatalogue: {"cleanup.policy", "compact,delete"},
		events.TopicCommands: {"retention.ms", "9223372036854775807"},
	} {
		altered, err := direct.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: set[0], Value: &set[1]}},
			cfg.TopicPrefix+topic.Name())
		if err != nil || altered[0].Err != nil {
			t.Fatal(err, altered)
		}
	}
	gone := cfg.TopicPrefix + events.TopicNotifications.Name()
	if _, err := direct.DeleteTopics(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	want[events.TopicUsageRaw] = time.Hour
	for _, topic := range []events.Topic{events.TopicUsageValidated, events.TopicBilling, events.TopicCommands, events.TopicNotifications} {
		delete(want, topic)
	}
	var got map[events.Topic]time.Duration
	for range 600 { // a broker may learn of a change later, on a busy machine much later
		if got, err = admin.Retention(t.Context()); err == nil && maps.Equal(got, want) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%v, want %v, %v", got, want, err)
}

// Without the right to read settings, the retention is that of topics that the service creates. Other
// errors are errors.
func TestRetentionWithoutTheRightToReadIt(t *testing.T) {
	h := &fakeBroker{describe: kerr.TopicAuthorizationFailed}
	admin := newAdmin(t, h.start(t, "usage.raw"))
	got, err := admin.Retention(t.Context())
	if err != nil || len(got) != len(events.Topics()) || got[events.TopicUsageRaw] != events.TopicRetention {
		t.Errorf("%v, %v", got, err)
	}
	h.mu.Lock()
	h.describe = kerr.InvalidRequest
	h.mu.Unlock()
	if got, err := admin.Retention(t.Context()); err == nil {
		t.Errorf("an error of the broker became %v", got)
	}
}
