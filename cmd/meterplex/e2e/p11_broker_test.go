package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func (w *deployment) unpublished() (n int64) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `SELECT sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`).Scan(&n)
	must.OK(w.t, err)
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
		w.cluster = kafkatest.Cluster(t, 1)
	}
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 2)
	m := lightTraffic()
	start := time.Now()
	l := w.startLoad(tenants, 2, m, func(int) string { return i.url() })
	l.awaitMore(100)
	down, from := time.Now(), l.acked()
	must.OK(t, w.brokers().Kill())
	l.awaitMore(100)
	var health struct{ Dependencies map[string]string }
	w.ask("", http.MethodGet, i, "/readyz", nil, &health, http.StatusOK)
	if d := health.Dependencies; d["database"] != "ok" || d["kafka"] != "does not answer" {
		t.Errorf("without a broker the dependencies are %v", d)
	}
	time.Sleep(tier.Duration(t, time.Second, time.Minute))
	if n := w.unpublished(); n == 0 {
		t.Error("no event waited for the broker")
	}
	must.OK(t, w.brokers().Restart(t.Context()))
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
		if took := l.latencies(part.from, part.to); len(took) > 0 {
			t.Logf("ingest %s the outage: %d requests, p50 %s, p99 %s", part.name, len(took), took[len(took)/2], took[len(took)*99/100])
		}
	}
	w.checkNoneWithheld()
	w.finish()
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
