package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/tier"
)

const (
	usageCommands      = "usage.commands"
	usageCommandsGroup = "meterplex-usage-commands"
)

// externalProducer is an external producer of messages. It counts those that must be refused.
type externalProducer struct {
	w        *deployment
	rng      *rand.Rand
	client   *kgo.Client
	sources  map[*tenant]*source
	refused  int // invalid events and invalid messages
	messages int
	events   int
}

func newExternalProducer(w *deployment) *externalProducer {
	o := &externalProducer{w: w, rng: rand.New(rand.NewPCG(w.seed, 99)), sources: map[*tenant]*source{},
		client: w.kafka(kgo.DefaultProduceTopic(w.prefix+usageCommands), kgo.UnknownTopicRetries(-1))} // a busy broker creates topics late
	w.t.Cleanup(o.client.Close)
	for n, x := range w.tenants {
		o.sources[x] = &source{rng: rand.New(rand.NewPCG(w.seed, uint64(1000+n))),
			mix: mix{duplicates: 20, conflicts: 5, rejections: 6, batch: 30}, name: fmt.Sprint("cmd", n)}
	}
	return o
}

func (o *externalProducer) produce(key string, value []byte, header ...kgo.RecordHeader) {
	o.w.t.Helper()
	o.messages++
	err := o.client.ProduceSync(o.w.t.Context(), &kgo.Record{Key: []byte(key), Value: value, Headers: header}).FirstErr()
	if err != nil {
		o.w.t.Fatal(err)
	}
}

// batch sends a tenant's batch as one message, or only its first event. It returns the sent events.
func (o *externalProducer) batch(x *tenant) []event {
	o.w.t.Helper()
	batch := o.sources[x].batch()
	var value []byte
	if o.rng.IntN(3) == 0 {
		batch = batch[:1]
		value, _ = json.Marshal(batch[0])
	} else {
		value, _ = json.Marshal(map[string]any{"events": batch})
	}
	x.ledger.sending(batch)
	for _, e := range batch {
		if e.Feature == "not.in.the.plan" {
			o.refused++
		}
	}
	o.events += len(batch)
	if o.rng.IntN(2) == 0 {
		o.produce("", value, kgo.RecordHeader{Key: "mp-tenant", Value: []byte(x.id)})
	} else {
		o.produce(x.id, value)
	}
	return batch
}

// sendInvalid sends messages that are not usage of any tenant.
func (o *externalProducer) sendInvalid(x *tenant) {
	o.w.t.Helper()
	for _, value := range []string{"", "null", "{", "\x00\xff\xfe", `{"events":[]}`, `{"events":5}`, `{"eventId":"a","eventId":"b"}`,
		`{"eventId":"\ud800"}`,
		`{"eventId":"p1","feature":"api_calls","amount":1.5,"timestamp":"2026-05-01T00:00:00Z"}`, `{"events":[{"eventId":"\u0000"},7]}`} {
		o.produce(x.id, []byte(value))
		o.refused++
	}
	o.refused++ // the last one has two events
	for _, tenant := range []string{"", "nobody", uuid.NewString(), uuid.Nil.String(), "\x00"} {
		o.produce(tenant, []byte(`{"eventId":"a","feature":"api_calls","amount":1,"timestamp":"2026-05-01T00:00:00Z"}`))
		o.refused++
	}
}

// awaitConsumed waits until the group has committed all messages of the topic.
func awaitConsumed(w *deployment) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	within(w.t, "the messages are consumed", func(ctx context.Context) (bool, string) {
		ends, err := admin.ListEndOffsets(ctx, w.prefix+usageCommands)
		if err != nil || ends.Error() != nil {
			return false, fmt.Sprint(err, ends.Error())
		}
		done, err := admin.FetchOffsets(ctx, w.prefix+usageCommandsGroup)
		if err != nil {
			return false, err.Error()
		}
		left := int64(0)
		ends.Each(func(o kadm.ListedOffset) {
			at, _ := done.Lookup(o.Topic, o.Partition)
			left += o.Offset - max(at.At, 0)
		})
		return left == 0, fmt.Sprint(left, " left")
	})
}

// Usage arrives as messages and over HTTP at the same time, the same events both ways, with every
// mistake that producers make. The service is killed in the middle; the topic is consumed from its
// beginning twice. Each event counts once, each refusal is one dead letter.
func TestP2_UsageAsCommands(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 3)
	o := newExternalProducer(w)
	for n := 0; o.events < 5000; n++ {
		x := tenants[n%len(tenants)]
		batch := o.batch(x)
		if n%4 == 0 { // over HTTP, too
			(&client{w: w, tenant: x, to: i.url}).sendOnce(t.Context(), batch)
		}
		switch n {
		case 40, 160:
			o.sendInvalid(x)
		case 100:
			i.kill()
		case 130:
			i.start()
		}
	}
	awaitConsumed(w)
	t.Logf("%d messages with %d events, %d refusals", o.messages, o.events, o.refused)
	// Over HTTP, every event that was not refused must be a duplicate.
	for _, x := range tenants {
		c := &client{w: w, tenant: x, to: i.url}
		for open := x.ledger.unknown(); len(open) > 0; open = x.ledger.unknown() {
			for _, v := range c.send(t.Context(), open[:min(len(open), 1000)]) {
				if v.Status == "accepted" {
					t.Fatalf("%s was not recorded from its message", v.EventID)
				}
			}
		}
	}
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	for range 2 {
		i.stop()
		within(t, "the group has no members", func(ctx context.Context) (bool, string) {
			from, err := admin.ListStartOffsets(ctx, w.prefix+usageCommands)
			if err != nil {
				return false, err.Error()
			}
			done, err := admin.CommitOffsets(ctx, w.prefix+usageCommandsGroup, from.Offsets())
			return err == nil && done.Error() == nil, fmt.Sprint(err, done.Error())
		})
		i.start()
		awaitConsumed(w)
	}
	if n := w.metric(i, `meterplex_events_ingested_total{tenant_class="small",verdict="duplicate"}`); n == 0 {
		t.Error("the metric counts no duplicate")
	}
	for _, series := range []string{`events_consumed_total{consumer="meterplex-usage-commands",result="noop",topic="usage.commands"}`,
		`inbox_dedup_skips_total{consumer="meterplex-usage-commands"}`,
		`event_processing_duration_seconds_count{consumer="meterplex-usage-commands"}`} {
		if n := w.metric(i, "meterplex_"+series); n == 0 {
			t.Errorf("%s is 0", series)
		}
	}
	within(t, "the lag of usage.commands is 0", func(context.Context) (bool, string) {
		n := metricsOf(w, i.url(), func(series string) bool {
			return strings.HasPrefix(series, "meterplex_consumer_lag{") && strings.Contains(series, `topic="usage.commands"`)
		})
		return n == 0, fmt.Sprint(n)
	})
	w.drain()
	for what, sql := range map[string]string{
		"in the log": `SELECT count(*) FROM event_log_rows WHERE subject = 7`, "in the inbox": `SELECT count(*) FROM inbox`,
		"dead letters": `SELECT count(*) FROM dead_letter_events WHERE stage = 'INGESTION' AND code <> 'payload_conflict'
			AND status = 'FAILED'`,
	} {
		if n := w.count(sql); n != o.refused {
			t.Errorf("%d refusals are %s, want %d", n, what, o.refused)
		}
	}
	var letters struct{ Data []struct{ ID string } }
	w.ask(w.operator, http.MethodGet, i, "/api/v1/dead-letters?stage=INGESTION&reason=tenant_not_found", nil, &letters, http.StatusOK)
	if len(letters.Data) == 0 {
		t.Fatal("a message without a known tenant made no dead letter")
	}
	retry := "/api/v1/dead-letters/" + letters.Data[0].ID + "/retry"
	w.ask(w.operator, http.MethodPost, i, retry, object{"reason": "test"}, nil, http.StatusConflict)
	w.finish()
}
