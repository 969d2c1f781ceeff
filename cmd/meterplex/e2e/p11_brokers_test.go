package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/meterplex/meterplex/internal/tier"
)

// Each record has three copies, of which two must be in sync.
const copies, leastInSync = 3, 2

// checkReplicated checks that the topics have three copies and need two in sync.
func (w *deployment) checkReplicated() {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	settings, err := kadm.NewClient(c).DescribeTopicConfigs(w.t.Context(), w.topicNames()...)
	if err != nil || len(settings) != len(topics()) {
		w.t.Fatalf("%d topics, %v", len(settings), err)
	}
	for _, topic := range settings {
		for _, s := range topic.Configs {
			if s.Key == "min.insync.replicas" && s.MaybeValue() != strconv.Itoa(leastInSync) {
				w.t.Errorf("%s of %s is %s, want %d", s.Key, topic.Name, s.MaybeValue(), leastInSync)
			}
		}
	}
	if why := w.waitForPartitions(w.cluster[0], "three brokers have a copy", func(p partitionState) bool { return len(p.copies) == copies }); why != "" {
		w.t.Fatal(why)
	}
}

// Three brokers with a copy of each record, two instances under load: leaders are moved,
// brokers rolled and killed, two of three stopped or frozen. That costs latency only.
func TestP11_ThreeBrokersMovedRestartedKilledAndMostStopped(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.withThreeBrokers()
	// Topics get three copies even if one broker is down when they are created.
	w.cluster[2].Halt(t.Context())
	first, second := w.serve(""), w.serve("")
	w.catalogue(first)
	tenants := w.createTenants(first, 4)
	w.awaitKeys(second, tenants)
	l := w.startLoad(tenants, 1, lightTraffic(), func(client int) string { return []*instance{first, second}[client%2].url() })
	w.awaitFolded(first, "meterplex-usage-aggregator") // the groups' offsets topic exists
	w.checkReplicated()
	if err := w.cluster[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if why := w.waitInSync(); why != "" {
		t.Errorf("broker 3 did not catch up under load: %s", why)
	}
	more := func() { l.awaitMore(50) }
	for _, fault := range []struct {
		name  string
		apply func(n int, while func()) (why string)
	}{
		{"leaders moved", w.moveLeaders}, {"rolled", w.rollBroker}, {"killed", w.crashBroker},
		{"all but one stopped", w.stopMost}, {"all but one frozen, and that one killed", w.freezeMost},
	} {
		for n := range copies {
			began := time.Now()
			if why := fault.apply(n, more); why != "" {
				t.Errorf("%s, broker %d: not reached, or not recovered: %s", fault.name, n+1, why)
			}
			t.Logf("%s, broker %d: %s", fault.name, n+1, time.Since(began).Round(time.Millisecond))
			l.awaitMore(50)
		}
	}
	l.stop()
	w.checkNoneWithheld()
	w.finish()
}
