package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/tier"
)

// The broker is killed three times under load. Ingest continues without it.
func TestP11_BrokerKilledAndBack(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.withOwnBroker()
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	for range 3 {
		l.awaitMore(100)
		w.withoutBroker(func() {
			l.awaitMore(150)
			w.checkReadyWithoutKafka(i)
		})
	}
	l.awaitMore(100)
	l.stop()
	w.checkNoneWithheld()
	w.finish()
}

// checkReadyWithoutKafka checks that an instance stays ready without Kafka and reports the outage.
func (w *deployment) checkReadyWithoutKafka(i *instance) {
	w.t.Helper()
	var health struct{ Dependencies map[string]string }
	w.ask("", http.MethodGet, i, "/readyz", nil, &health, http.StatusOK)
	if d := health.Dependencies; d["database"] != "ok" || d["kafka"] != "does not answer" {
		w.t.Errorf("without a broker the dependencies are %v", d)
	}
}

// withoutBroker calls do while the broker is dead, and checks that events are queued.
func (w *deployment) withoutBroker(do func()) {
	w.t.Helper()
	k := w.brokers()
	if err := k.Kill(); err != nil {
		w.t.Fatal(err)
	}
	do()
	if n := w.unpublished(); n == 0 {
		w.t.Error("no event waited for the broker")
	}
	if err := k.Restart(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *deployment) unpublished() (n int64) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `SELECT sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`).Scan(&n)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// checkNoneWithheld checks that an outage made no dead letter.
func (w *deployment) checkNoneWithheld() {
	w.t.Helper()
	var n int
	err := w.sql.QueryRow(w.t.Context(), `SELECT (SELECT count(*) FROM withheld_records) + (SELECT count(*) FROM event_log_rows WHERE subject IN (10, 11))`).Scan(&n)
	if err != nil || n != 0 {
		w.t.Errorf("%d events were withheld or failed to fold, %v", n, err)
	}
}

// An outage of the broker adds latency behind the log, not to ingest; the backlog
// drains by itself when the broker is back.
func TestP11_UsageIsAcceptedWithoutABroker(t *testing.T) {
	w := newDeployment(t)
	if !testing.Short() { // alone, the test kills the broker that others share
		t.Parallel()
		w.withOwnBroker()
	}
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	m := lightTraffic()
	start := time.Now()
	l := w.startLoad(tenants, 2, m, func(int) string { return i.url() })
	l.awaitMore(100)
	down, from := time.Now(), l.acked()
	w.withoutBroker(func() {
		l.awaitMore(100)
		time.Sleep(tier.Duration(t, time.Second, time.Minute))
	})
	back, during := time.Now(), l.acked()-from
	l.stop()
	drained := w.drain()
	if l.lost() > 0 {
		t.Errorf("%d requests had no answer", l.lost())
	}
	t.Logf("%s without a broker: %d events accepted; drained %s after it was back", back.Sub(down).Round(time.Millisecond), during, drained.Round(time.Millisecond))
	for _, part := range []struct {
		name     string
		from, to time.Time
	}{{"before", start, down}, {"during", down, back}} {
		var took []time.Duration
		for _, c := range l.clients {
			took = append(took, c.latencies(t, part.from, part.to)...)
		}
		slices.Sort(took)
		if len(took) > 0 {
			t.Logf("ingest %s the outage: %d requests, p50 %s, p99 %s", part.name, len(took), took[len(took)/2], took[len(took)*99/100])
		}
	}
	w.checkNoneWithheld()
	w.finish()
}

// The broker loses data, topics and group offsets. The log still has all events.
func TestP11_TopicsWiped(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.withOwnBroker()
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(150)
	comeBack := w.wipeBroker()
	w.afterLoss()
	l.awaitMore(150)
	comeBack()
	l.awaitMore(150)
	l.stop()
	w.checkNoneWithheld()
	w.finish()
}

// The topics are deleted and created again while the service runs and the broker answers.
func TestP11_TopicsRecreated(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(150)
	old := w.awaitTopics()
	c := w.kafka()
	defer c.Close()
	w.beforeLoss()
	if _, err := kadm.NewClient(c).DeleteTopics(t.Context(), w.topicNames()...); err != nil {
		t.Fatal(err)
	}
	l.awaitMore(150)
	w.awaitRecreated(old)
	w.afterLoss()
	l.awaitMore(150)
	l.stop()
	w.checkNoneWithheld()
	w.finish()
}

// wipeBroker kills the broker and deletes its data. comeBack starts it again.
func (w *deployment) wipeBroker() (comeBack func()) {
	w.t.Helper()
	old, k := w.awaitTopics(), w.cluster // its own
	w.beforeLoss()
	if err := k.Kill(); err != nil {
		w.t.Fatal(err)
	}
	for _, broker := range k {
		if err := os.RemoveAll(broker.Dir()); err != nil {
			w.t.Fatal(err)
		}
	}
	return func() {
		w.t.Helper()
		if err := k.Restart(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		w.awaitRecreated(old)
	}
}

// awaitTopics waits until all of the registry's topics exist and returns their ids. Events may
// be recorded before that.
func (w *deployment) awaitTopics() (all map[string]kadm.TopicID) {
	w.t.Helper()
	within(w.t, "the topics exist", func(ctx context.Context) (bool, string) {
		var err error
		all, err = w.topicIDs(ctx)
		return err == nil && len(all) == len(topics()), fmt.Sprint(len(all), " topics, ", err)
	})
	return all
}

// topicIDs returns the ids of the registry's topics that exist with all partitions.
func (w *deployment) topicIDs(ctx context.Context) (map[string]kadm.TopicID, error) {
	c := w.kafka()
	defer c.Close()
	list, err := kadm.NewClient(c).ListTopics(ctx, w.topicNames()...)
	ids := map[string]kadm.TopicID{}
	for _, topic := range list {
		if topic.Err == nil && len(topic.Partitions) == 32 {
			ids[topic.Topic] = topic.ID
		}
	}
	return ids, err
}

// awaitRecreated waits until all topics exist again with new ids.
func (w *deployment) awaitRecreated(old map[string]kadm.TopicID) {
	w.t.Helper()
	within(w.t, "the topics exist again", func(ctx context.Context) (bool, string) {
		ids, err := w.topicIDs(ctx)
		same := 0
		for name, id := range ids {
			if old[name] == id {
				same++
			}
		}
		return err == nil && same == 0 && len(ids) == len(topics()), fmt.Sprintf("%d topics, %d with their old id, %v", len(ids), same, err)
	})
}
