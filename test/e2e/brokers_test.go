package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
)

// brokers returns the test's own cluster, or else the broker shared by the test binary.
func (w *deployment) brokers() kafkatest.Cluster {
	w.t.Helper()
	if w.cluster != nil {
		return w.cluster
	}
	return kafkatest.Cluster{kafkatest.Broker(w.t)}
}

// roomForThreeBrokers reports whether the machine has 2 processors and 4 GiB of free memory, or does not report its memory.
func roomForThreeBrokers() bool {
	raw, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(raw), "MemAvailable:")
	text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kib, err := strconv.ParseInt(text, 10, 64)
	return runtime.NumCPU() >= 2 && (err != nil || kib >= 4<<20)
}

// partitionState is the state of one partition, as one broker reports it.
type partitionState struct {
	topic         string
	partition     int32
	leader        int32
	copies, alive []int32 // broker ids; alive are the copies in sync
}

// partitionsAt asks one broker for the state of the partitions of the test's topics and of the groups' offsets.
func partitionsAt(ctx context.Context, w *deployment, k *localkafka.Broker) (all []partitionState, err error) {
	ask := kmsg.NewPtrMetadataRequest()
	for _, name := range append(topicNames(w), "__consumer_offsets") {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		ask.Topics = append(ask.Topics, topic)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	response, err := c.SeedBrokers()[0].Request(ctx, ask)
	if err != nil {
		return nil, err
	}
	for _, t := range response.(*kmsg.MetadataResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, fmt.Errorf("%s: %w", *t.Topic, err)
		}
		for _, p := range t.Partitions {
			all = append(all, partitionState{*t.Topic, p.Partition, p.Leader, p.Replicas, p.ISR})
		}
	}
	return all, nil
}

// waitForPartitions waits until a condition holds for every partition, as one broker reports it. It
// returns "", or the reason after a minute.
func waitForPartitions(w *deployment, at *localkafka.Broker, condition string, holds func(p partitionState) bool) (why string) {
	// An answer has the state of 260 partitions with three copies: shorter pauses would be most of a broker's work.
	becomesTrueEvery(w, 250*time.Millisecond, time.Minute, func(ctx context.Context) bool {
		all, err := partitionsAt(ctx, w, at)
		n := slices.IndexFunc(all, func(p partitionState) bool { return !holds(p) })
		switch {
		case err != nil:
			why = err.Error()
		case n >= 0:
			why = fmt.Sprintf("condition %q does not hold for %+v", condition, all[n])
		default:
			why = ""
		}
		return why == ""
	})
	return why
}

// waitInSync waits until every copy of every partition is in sync.
func waitInSync(w *deployment) (why string) {
	inSync := func(p partitionState) bool { return len(p.alive) == copies && p.leader > 0 }
	return waitForPartitions(w, w.cluster[0], "all copies are in sync", inSync)
}

// moveLeaders moves the leader of every partition to another broker: it puts that broker first in
// the list of copies and starts a preferred leader election.
func moveLeaders(w *deployment, _ int, while func()) (why string) {
	if why := waitInSync(w); why != "" {
		return why
	}
	before, err := partitionsAt(w.t.Context(), w, w.cluster[0])
	if err != nil {
		return err.Error()
	}
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	var turned kadm.AlterPartitionAssignmentsReq
	var set kadm.TopicsSet
	next := map[string]int32{}
	for _, p := range before {
		at := (slices.Index(p.copies, p.leader) + 1) % copies
		turned.Assign(p.topic, p.partition, append(slices.Clone(p.copies[at:]), p.copies[:at]...))
		set.Add(p.topic, p.partition)
		next[fmt.Sprint(p.topic, p.partition)] = p.copies[at]
	}
	answers, err := admin.AlterPartitionAssignments(w.t.Context(), turned)
	if err = errors.Join(err, answers.Error()); err != nil {
		return fmt.Sprintf("reorder the copies of %d partitions: %v", len(before), err)
	}
	why = waitForPartitions(w, w.cluster[0], "the elected broker leads", func(p partitionState) bool {
		if p.leader == next[fmt.Sprint(p.topic, p.partition)] {
			return true
		}
		// A broker that reported late that it lives could not be elected.
		_, _ = admin.ElectLeaders(w.t.Context(), kadm.ElectPreferredReplica, set)
		return false
	})
	if why == "" {
		while()
	}
	return why
}

// rollBroker shuts a broker down cleanly and starts it again.
func rollBroker(w *deployment, n int, while func()) (why string) {
	w.cluster[n].Halt(w.t.Context())
	return awaitThenRestart(w, n, while)
}

// crashBroker kills a broker and starts it again.
func crashBroker(w *deployment, n int, while func()) (why string) {
	if err := w.cluster[n].Kill(); err != nil {
		return err.Error()
	}
	return awaitThenRestart(w, n, while)
}

// awaitThenRestart waits until the other brokers lead all partitions, calls while, and starts the ended broker again.
func awaitThenRestart(w *deployment, n int, while func()) (why string) {
	gone, other := int32(n+1), w.cluster[(n+1)%copies]
	why = waitForPartitions(w, other, "the other brokers lead and are in sync", func(p partitionState) bool {
		return p.leader > 0 && p.leader != gone && len(p.alive) == copies-1 && !slices.Contains(p.alive, gone)
	})
	if why == "" {
		while()
	}
	must.OK(w.t, w.cluster[n].Restart(context.WithoutCancel(w.t.Context())))
	if whole := waitInSync(w); why == "" {
		why = whole
	}
	return why
}

// stopMost shuts down all brokers but one cleanly: the one that is left has every record
// and may acknowledge none.
func stopMost(w *deployment, left int, while func()) (why string) {
	var gone kafkatest.Cluster
	for n, k := range w.cluster {
		if n != left {
			k.Halt(w.t.Context())
			gone = append(gone, k)
		}
	}
	why = waitForPartitions(w, w.cluster[left], "one copy is in sync",
		func(p partitionState) bool { return slices.Equal(p.alive, []int32{int32(left + 1)}) })
	if why == "" {
		why = checkNoneAcknowledged(w, while)
	}
	must.OK(w.t, gone.Restart(context.WithoutCancel(w.t.Context())))
	if whole := waitInSync(w); why == "" {
		why = whole
	}
	return why
}

// checkNoneAcknowledged checks that the brokers acknowledge no record while events are
// recorded, and that some records wait.
func checkNoneAcknowledged(w *deployment, while func()) (why string) {
	var before, after, waiting int64
	var none bool
	// Earlier records are acknowledged first. The relay saves that once its call ends, which waits for the records that no broker
	// acknowledges. Brokers that acknowledge with too few copies do so each time.
	for range 3 {
		before, _ = relayProgress(w)
		settled := becomesTrue(w, 30*time.Second, func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
			at := before
			before, _ = relayProgress(w)
			return at == before
		})
		while()
		after, waiting = relayProgress(w)
		if none = settled && after == before; none {
			break
		}
	}
	switch {
	case !none:
		return fmt.Sprintf("%d records were acknowledged with too few copies in sync", after-before)
	case waiting == 0:
		return "no record waited for the brokers"
	}
	return ""
}

// relayProgress returns the sum of the relay's cursors and the number of records not yet published.
func relayProgress(w *deployment) (at, waiting int64) {
	becomesTrue(w, time.Minute, func(ctx context.Context) bool { // the database may be down, too
		return w.sql.QueryRow(ctx,
			`SELECT sum(c.position)::bigint, sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`).
			Scan(&at,
				&waiting) == nil
	})
	return at, waiting
}

// copies of each record; two must be in sync.
const copies = 3

// checkReplicated checks that the topics have three copies and need two in sync.
func checkReplicated(w *deployment) {
	w.t.Helper()
	c := w.kafka()
	defer c.Close()
	settings, err := kadm.NewClient(c).DescribeTopicConfigs(w.t.Context(), topicNames(w)...)
	if err != nil || len(settings) != len(topics()) {
		w.t.Fatalf("%d topics, %v", len(settings), err)
	}
	for _, topic := range settings {
		for _, s := range topic.Configs {
			if s.Key == "min.insync.replicas" && s.MaybeValue() != "2" {
				w.t.Errorf("%s of %s is %s, want 2", s.Key, topic.Name, s.MaybeValue())
			}
		}
	}
	if why := waitForPartitions(w, w.cluster[0], "three brokers have a copy",
		func(p partitionState) bool { return len(p.copies) == copies }); why != "" {
		w.t.Fatal(why)
	}
}
