package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/tier"
)

// replayed is a replay as the command prints it.
type replayed struct {
	ID, Kind, State    string
	Records, Remaining int64
	Partitions         []struct{ Partition, From, To int64 }
}

// replay runs `meterplex replay …` to its end.
func (c *cli) replay(args ...string) (r replayed) {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	args = append([]string{"replay"}, append(args, "--reason", "a test", "--wait", "-o", "json")...)
	out, err := c.command(ctx, args...).Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || r.State != "DONE" || r.Remaining != 0 {
		c.w.t.Fatalf("%v: %v\n%s\n%s", args, err, out, c.stderr.String())
	}
	return r
}

// Kafka is killed under load and loses its data; one command fills the topics again. Then each
// topic has the same set of positions as the log, and the figures are unchanged.
func TestP11_OneCommandAfterKafkaLostItsData(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.withOwnBroker()
	i := w.serve("")
	w.catalogue(i)
	tenants := w.createTenants(i, 3)
	first := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	first.awaitMore(300)
	first.stop()
	w.drain() // Kafka holds all records, and the consumers no longer need them
	l := w.startLoad(tenants, 2, lightTraffic(), func(int) string { return i.url() })
	l.awaitMore(100)
	comeBack := w.wipeBroker()
	l.awaitMore(100)
	comeBack()
	w.afterLoss()
	done := w.cli(i, w.operator).replay("rewind", "--since", "168h")
	if len(done.Partitions) == 0 {
		t.Error("the relay was rewound in no partition")
	}
	w.afterRefill()
	l.awaitMore(100)
	l.stop()
	w.checkNoneWithheld()
	w.finish() // w.goneUpTo is empty: no record may be missing on the topics
}

// All consumers are rewound while they work, on two instances under load: each record
// consumed again is a duplicate. Meanwhile a range is published again for external readers.
func TestP2_ConsumersRewoundUnderLoad(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	rewindUnderLoad(w, w.serve(""), w.serve(""))
}

// The same with PostgreSQL as the pipe.
func TestP2_ConsumersRewoundUnderLoadWithoutKafka(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	rewindUnderLoad(w, w.serve(""), w.serve(""))
}

func rewindUnderLoad(w *deployment, a, b *instance) {
	w.t.Helper()
	w.catalogue(a)
	tenants := w.createTenants(a, 3)
	w.awaitKeys(b, tenants)
	start := time.Now()
	l := w.startLoad(tenants, 2, lightTraffic(), func(n int) string {
		if n%2 == 1 {
			return b.url()
		}
		return a.url()
	})
	l.awaitMore(300)
	for _, consumer := range []string{"meterplex-usage-validator", "meterplex-usage-aggregator", "meterplex-dead-letter-handler"} {
		w.awaitFolded(a, consumer)
	}
	c := w.cli(a, w.operator)
	for n, consumer := range []string{"meterplex-usage-validator", "meterplex-usage-aggregator", "meterplex-dead-letter-handler", "meterplex-command-handler", "meterplex-usage-commands"} {
		to := []string{"--to-start", "--to-time=" + start.UTC().Format(time.RFC3339Nano)}[n%2]
		done := c.replay("rewind", "--consumer", consumer, to)
		if len(done.Partitions) == 0 && consumer != "meterplex-usage-commands" && consumer != "meterplex-command-handler" {
			w.t.Errorf("%s was rewound in no partition", consumer)
		}
	}
	if done := c.replay("range", "--topic", "usage.raw", "--from-time", start.Add(-time.Hour).UTC().Format(time.RFC3339)); done.Records == 0 {
		w.t.Error("no record was published again")
	}
	l.awaitMore(150)
	l.stop()
	within(w.t, "duplicates were skipped", func(context.Context) (bool, string) {
		skips := w.dedupeSkips(a) + w.dedupeSkips(b)
		return skips > 0, fmt.Sprint(skips)
	})
	w.finish()
}

func (w *deployment) dedupeSkips(at *instance) (n float64) {
	for _, consumer := range []string{"meterplex-usage-validator", "meterplex-usage-aggregator", "meterplex-dead-letter-handler"} {
		n += w.metric(at, `meterplex_inbox_dedup_skips_total{consumer="`+consumer+`"}`)
	}
	return n
}

// awaitFolded waits until a consumer has folded an event: before that a rewind has no effect.
func (w *deployment) awaitFolded(at *instance, consumer string) {
	w.t.Helper()
	within(w.t, consumer+" has folded an event", func(context.Context) (bool, string) {
		n := w.count(`SELECT count(*) FROM consumer_checkpoints WHERE consumer = $1 AND position > 0`, consumer)
		return n > 0, fmt.Sprint(n)
	})
}
