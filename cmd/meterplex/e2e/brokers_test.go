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
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
)

// brokers returns the test's own cluster, or else the broker shared by the test binary.
func (w *deployment) brokers() localkafka.Cluster {
	w.t.Helper()
	if w.cluster != nil {
		return w.cluster
	}
	return localkafka.Cluster{kafkatest.Broker(w.t)}
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
	leader, epoch int32
	copies, alive []int32 // broker ids; alive are the copies in sync
}

// partitionsAt asks one broker for the state of the partitions of the test's topics and of the
// groups' offsets.
func (w *deployment) partitionsAt(ctx context.Context, k *localkafka.Broker) ([]partitionState, error) {
	ask := kmsg.NewPtrMetadataRequest()
	for _, name := range append(w.topicNames(), "__consumer_offsets") {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		ask.Topics = append(ask.Topics, topic)
	}
	response, err := answerOf(ctx, k, ask)
	if err != nil {
		return nil, err
	}
	var all []partitionState
	for _, t := range response.(*kmsg.MetadataResponse).Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, fmt.Errorf("%s: %w", *t.Topic, err)
		}
		for _, p := range t.Partitions {
			all = append(all, partitionState{*t.Topic, p.Partition, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR})
		}
	}
	return all, nil
}

// answerOf sends a request to one broker only.
func answerOf(ctx context.Context, k *localkafka.Broker, ask kmsg.Request) (kmsg.Response, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return c.SeedBrokers()[0].Request(ctx, ask)
}

// betweenStates is the pause between two requests for the state of the partitions. An answer has the
// state of 260 partitions with three copies: with short pauses the requests were most of a broker's work.
const betweenStates = 250 * time.Millisecond

// waitForPartitions waits until a condition holds for every partition, as one broker reports it. It
// returns "", or the reason after a minute.
func (w *deployment) waitForPartitions(at *localkafka.Broker, condition string, holds func(p partitionState) bool) (why string) {
	if w.becomesTrueEvery(betweenStates, time.Minute, func(ctx context.Context) bool {
		all, err := w.partitionsAt(ctx, at)
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
	}) {
		return ""
	}
	return why
}

// waitInSync waits until every copy of every partition is in sync.
func (w *deployment) waitInSync() (why string) {
	return w.waitForPartitions(w.cluster[0], "all copies are in sync", func(p partitionState) bool { return len(p.alive) == copies && p.leader > 0 })
}

// moveLeaders moves the leader of every partition to another broker.
func (w *deployment) moveLeaders(_ int, while func()) (why string) {
	if why = w.electLeaders(func(p partitionState) int32 { return p.copies[(slices.Index(p.copies, p.leader)+1)%copies] }); why == "" {
		while()
	}
	return why
}

// electLeaders elects a chosen broker as the leader of each partition: it puts that broker first in
// the list of copies and starts a preferred leader election.
func (w *deployment) electLeaders(by func(p partitionState) int32) (why string) {
	if why := w.waitInSync(); why != "" {
		return why
	}
	before, err := w.partitionsAt(w.t.Context(), w.cluster[0])
	if err != nil {
		return err.Error()
	}
	c := w.kafka()
	defer c.Close()
	admin := kadm.NewClient(c)
	var turned kadm.AlterPartitionAssignmentsReq
	var set kadm.TopicsSet
	next, moved := map[string]int32{}, 0
	for _, p := range before {
		leader := by(p)
		at := slices.Index(p.copies, leader)
		turned.Assign(p.topic, p.partition, append(slices.Clone(p.copies[at:]), p.copies[:at]...))
		set.Add(p.topic, p.partition)
		next[fmt.Sprint(p.topic, p.partition)] = leader
		if leader != p.leader {
			moved++
		}
	}
	answers, err := admin.AlterPartitionAssignments(w.t.Context(), turned)
	if err = errors.Join(err, answers.Error()); err != nil {
		return fmt.Sprintf("reorder the copies of %d partitions: %v", len(before), err)
	}
	w.t.Logf("%d of %d partitions get another leader", moved, len(before))
	return w.waitForPartitions(w.cluster[0], "the elected broker leads", func(p partitionState) bool {
		if p.leader == next[fmt.Sprint(p.topic, p.partition)] {
			return true
		}
		// A broker that reported late that it lives could not be elected.
		_, _ = admin.ElectLeaders(w.t.Context(), kadm.ElectPreferredReplica, set)
		return false
	})
}

// rollBroker shuts a broker down cleanly and starts it again.
func (w *deployment) rollBroker(n int, while func()) (why string) {
	w.cluster[n].Halt(w.t.Context())
	return w.awaitThenRestart(n, while)
}

// crashBroker kills a broker and starts it again.
func (w *deployment) crashBroker(n int, while func()) (why string) {
	if err := w.cluster[n].Kill(); err != nil {
		return err.Error()
	}
	return w.awaitThenRestart(n, while)
}

// awaitThenRestart waits until the other brokers lead all partitions, calls while, and starts the ended broker again.
func (w *deployment) awaitThenRestart(n int, while func()) (why string) {
	gone, other := int32(n+1), w.cluster[(n+1)%copies]
	why = w.waitForPartitions(other, "the other brokers lead and are in sync", func(p partitionState) bool {
		return p.leader > 0 && p.leader != gone && len(p.alive) == copies-1 && !slices.Contains(p.alive, gone)
	})
	if why == "" {
		while()
	}
	must.OK(w.t, w.cluster[n].Restart(context.WithoutCancel(w.t.Context())))
	if whole := w.waitInSync(); why == "" {
		why = whole
	}
	return why
}

// stopMost shuts down all brokers but one cleanly: the one that is left has every record
// and may acknowledge none.
func (w *deployment) stopMost(left int, while func()) (why string) {
	var gone localkafka.Cluster
	for n, k := range w.cluster {
		if n != left {
			k.Halt(w.t.Context())
			gone = append(gone, k)
		}
	}
	why = w.waitForPartitions(w.cluster[left], "one copy is in sync", func(p partitionState) bool { return slices.Equal(p.alive, []int32{int32(left + 1)}) })
	if why == "" {
		why = w.checkNoneAcknowledged(while)
	}
	must.OK(w.t, gone.Restart(context.WithoutCancel(w.t.Context())))
	if whole := w.waitInSync(); why == "" {
		why = whole
	}
	return why
}

// freezeMost stops all brokers but one with SIGSTOP. The running broker leads every partition,
// accepts records that no other broker has, and is killed; then the others continue without
// them. Five tries: the relay must send to that broker just then, and not wait for a frozen one.
func (w *deployment) freezeMost(last int, while func()) (why string) {
	for range 5 {
		if why := w.electLeaders(func(partitionState) int32 { return int32(last + 1) }); why != "" {
			return why
		}
		while() // meanwhile the other brokers catch up
		w.signalAllBut(last, syscall.SIGSTOP)
		broken := w.checkNoneAcknowledged(while)
		n, err := w.unreplicated(w.cluster[last])
		reached := err == nil && n > 0
		if reached {
			err = w.cluster[last].Kill()
		}
		w.signalAllBut(last, syscall.SIGCONT)
		w.t.Logf("%d records were on one broker only (%v)", n, err)
		switch {
		case broken != "":
			return broken
		case reached && err == nil:
			return w.awaitThenRestart(last, func() {})
		}
		why = fmt.Sprintf("%d records were on one broker only: %v", n, err)
		if whole := w.waitInSync(); whole != "" {
			return why + "; " + whole
		}
	}
	return why
}

// signalAllBut sends a signal to all brokers but one.
func (w *deployment) signalAllBut(than int, sig syscall.Signal) {
	for n, k := range w.cluster {
		if n == than {
			continue
		}
		if err := syscall.Kill(k.PID(), sig); err != nil {
			w.t.Error(err)
		}
	}
}

// unreplicated counts the records in the partitions that a broker leads which no other broker has
// confirmed.
func (w *deployment) unreplicated(k *localkafka.Broker) (n int64, err error) {
	ctx := w.t.Context()
	all, err := w.partitionsAt(ctx, k)
	if err != nil {
		return 0, err
	}
	ends, shared := kmsg.NewPtrOffsetForLeaderEpochRequest(), kmsg.NewPtrListOffsetsRequest()
	for _, p := range all {
		if p.leader < 1 || w.cluster[p.leader-1] != k { // the slow broker lost the lead
			continue
		}
		e, s := kmsg.NewOffsetForLeaderEpochRequestTopicPartition(), kmsg.NewListOffsetsRequestTopicPartition()
		e.Partition, e.LeaderEpoch, s.Partition, s.Timestamp = p.partition, p.epoch, p.partition, -1
		ends.Topics = append(ends.Topics, kmsg.OffsetForLeaderEpochRequestTopic{Topic: p.topic, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{e}})
		shared.Topics = append(shared.Topics, kmsg.ListOffsetsRequestTopic{Topic: p.topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{s}})
	}
	taken, err := answerOf(ctx, k, ends)
	if err != nil {
		return 0, err
	}
	known, err := answerOf(ctx, k, shared)
	if err != nil {
		return 0, err
	}
	end := map[string]int64{}
	for _, t := range taken.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 { // the leader may be changing
				end[fmt.Sprint(t.Topic, p.Partition)] = p.EndOffset
			}
		}
	}
	for _, t := range known.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				n += max(0, end[fmt.Sprint(t.Topic, p.Partition)]-p.Offset)
			}
		}
	}
	return n, nil
}

// checkNoneAcknowledged checks that the brokers acknowledge no record while events are
// recorded, and that some records wait.
func (w *deployment) checkNoneAcknowledged(while func()) (why string) {
	var before, after, waiting int64
	var none bool
	// Earlier records are acknowledged first. The relay saves that once its call ends, which waits for the records that no broker acknowledges.
	// Brokers that acknowledge with too few copies do so each time.
	for range 3 {
		before, _ = w.relayProgress()
		settled := w.becomesTrue(30*time.Second, func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
			at := before
			before, _ = w.relayProgress()
			return at == before
		})
		while()
		after, waiting = w.relayProgress()
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
func (w *deployment) relayProgress() (at, waiting int64) {
	w.becomesTrue(time.Minute, func(ctx context.Context) bool { // the database may be down, too
		return w.sql.QueryRow(ctx, `SELECT sum(c.position)::bigint, sum(h.position - c.position)::bigint FROM log_heads h JOIN relay_cursors c USING (partition)`).Scan(&at, &waiting) == nil
	})
	return at, waiting
}

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
