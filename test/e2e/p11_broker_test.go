package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P11: an outage of the broker adds latency behind the log, not to ingest, which answers every request; the backlog
// drains by itself when the broker is back. A busy machine may make the service refuse requests before it begins them, but not because of
// the backlog.
func TestP11_UsageIsAcceptedWithoutABroker(t *testing.T) {
	w := newDeployment(t)
	if !testing.Short() { // alone, the test kills the broker that others share
		t.Parallel()
		w.cluster = kafkatest.StartCluster(t, 1)
	}
	i := w.serve("")
	w.catalogue(i)
	l := w.startLoad(w.createTenants(i, 2), 2, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(100)
	must.OK(t, w.brokers().Kill())
	l.awaitMore(100)
	var health struct{ Dependencies map[string]string }
	w.ask("", http.MethodGet, i, "/readyz", nil, &health, http.StatusOK)
	if d := health.Dependencies; d["database"] != "ok" || d["kafka"] != "does not answer" {
		t.Errorf("without a broker the dependencies are %v", d)
	}
	time.Sleep(tier.Duration(t, time.Second, time.Minute))
	if n := w.count(`SELECT sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`); n == 0 {
		t.Error("no event waited for the broker")
	}
	must.OK(t, w.brokers().Restart(t.Context()))
	l.stop()
	t.Logf("drained %s after the broker was back; %d refusals", w.drain(), l.refused())
	awaitFreshMetrics()
	if n := w.metric(i, `meterplex_http_refused_total{reason="backlog"}`); n > 0 {
		t.Errorf("%v requests were refused because of the backlog", n)
	}
	if l.lost() > 0 {
		t.Errorf("%d requests had no answer", l.lost())
	}
	if n := w.count(`SELECT (SELECT count(*) FROM withheld_records) + (SELECT count(*) FROM event_log_rows
 WHERE subject IN (10, 11))`); n != 0 {
		t.Errorf("%d events were withheld or failed to fold", n)
	}
	w.finish()
}

// awaitTopics waits until all of the registry's topics exist and returns their ids. Events may
// be recorded before that.
func awaitTopics(w *deployment) (all map[string]kadm.TopicID) {
	w.t.Helper()
	awaitRecreated(w, nil)
	all, err := topicIDs(w.t.Context(), w)
	must.OK(w.t, err)
	return all
}

// topicIDs returns the ids of the registry's topics that exist with all partitions.
func topicIDs(ctx context.Context, w *deployment) (map[string]kadm.TopicID, error) {
	c := w.kafka()
	defer c.Close()
	list, err := kadm.NewClient(c).ListTopics(ctx, topicNames(w)...)
	ids := map[string]kadm.TopicID{}
	for _, topic := range list {
		if topic.Err == nil && len(topic.Partitions) == 32 {
			ids[topic.Topic] = topic.ID
		}
	}
	return ids, err
}

// awaitRecreated waits until all topics exist with other ids than the old ones.
func awaitRecreated(w *deployment, old map[string]kadm.TopicID) {
	w.t.Helper()
	within(w.t, "the topics exist again", func(ctx context.Context) (bool, string) {
		ids, err := topicIDs(ctx, w)
		same := 0
		for name, id := range ids {
			if old[name] == id {
				same++
			}
		}
		return err == nil && same == 0 && len(ids) == len(topics()), fmt.Sprintf("%d topics, %d with their old id, %v", len(ids), same, err)
	})
}
