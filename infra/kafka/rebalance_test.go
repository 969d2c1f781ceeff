package kafka_test

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// P3: partitions that leave a member and come back while it waits for records lose none. It waits for an idle topic, so that the wait
// spans both changes.
func TestP3_PartitionsThatComeBackDuringAWaitLoseNoRecord(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	makeTopic(t, cfg, events.TopicUsageRaw)
	admin, group := client(t), cfg.TopicPrefix+"g"
	owned := func() (by map[string][]int32) {
		groups, err := admin.DescribeGroups(t.Context(), group)
		if err != nil || groups[group].State != "Stable" {
			return nil
		}
		by = map[string][]int32{}
		for _, m := range groups[group].Members {
			if c, ok := m.Assigned.AsConsumer(); ok {
				for _, topic := range c.Topics {
					by[m.MemberID] = append(by[m.MemberID], topic.Partitions...)
				}
			}
		}
		return by
	}
	await := func(members int) (by map[string][]int32) {
		t.Helper()
		must.Until(t, fmt.Sprint(members, " members own all partitions"), func() bool {
			all := 0
			by = owned()
			for _, list := range by {
				all += len(list)
			}
			return len(by) == members && all == events.Partitions
		})
		return by
	}
	join := func() (<-chan string, func()) {
		return reading(t, newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"}))
	}
	values, stop := join()
	defer stop()
	var stays string
	for member := range await(1) {
		stays = member
	}
	pub := newPublisher(t, cfg)
	defer pub.Close()
	put(t, pub, 0, "before") // so that it waits again, with all partitions
	next(t, values, 1)
	_, leave := join()
	var moved []int32
	for member, list := range await(2) {
		if member != stays {
			moved = list
		}
	}
	leave()
	await(1)
	time.Sleep(2 * time.Second) // it fetches the partitions that came back
	var wanted []string
	for _, p := range moved { // a record of a partition that stayed would end the wait
		wanted = append(wanted, fmt.Sprint(p))
		put(t, pub, int16(p), fmt.Sprint(p))
	}
	got := next(t, values, len(wanted))
	slices.Sort(got)
	slices.Sort(wanted)
	want(t, got, wanted...)
}

// The offsets of an acknowledged batch are committed while its member reads on: each time, and those of a Nack are not.
func TestOffsetsAreCommittedAfterEachAck(t *testing.T) {
	cfg := config(t)
	admin := makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	defer sub.Close()
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	behind := func() (records int64) {
		lags, err := admin.Lag(t.Context(), "g")
		must.OK(t, err)
		for _, l := range lags {
			records += max(l.Lag, 0)
		}
		return records
	}
	for round := range 3 {
		must.OK(t, pipetest.Publish(t.Context(), pub, pipetest.Make(events.TopicUsageRaw, 70*round, 70)))
		nacked, _ := receive(t, messages)
		nacked.Nack()
		for n := 0; n < 70; {
			msg, records := receive(t, messages)
			if n == 0 && behind() < int64(len(records)) {
				t.Errorf("round %d: offsets are committed before the Ack", round)
			}
			n += len(records)
			msg.Ack()
		}
		must.Until(t, "the offsets of acknowledged records are committed", func() bool { return behind() == 0 })
	}
}

// A broker that hangs when offsets are due to be committed does not block a stop.
func TestP11_ABrokerThatHangsDoesNotDelayAStop(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	broker := ownBroker(t)
	cfg := configAt(t, broker)
	makeTopic(t, cfg, events.TopicUsageRaw)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	sub := newSubscriber(t, kafka.SubscriberConfig{Config: cfg, Group: "g"})
	messages, err := sub.Subscribe(t.Context(), "usage.raw")
	must.OK(t, err)
	publishAll(t, pub, events.TopicUsageRaw, 0, 10, 10, func(int) {})
	msg, _ := receive(t, messages)
	process, err := os.FindProcess(broker.PID())
	must.OK(t, err)
	must.OK(t, process.Signal(syscall.SIGSTOP))
	defer process.Signal(syscall.SIGCONT)
	awaitStopped(t, process.Pid)
	msg.Ack()
	time.Sleep(500 * time.Millisecond) // a commit is under way
	began := time.Now()
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("the stop took %v", took)
	if took > time.Minute {
		t.Errorf("the stop took %v", took)
	}
}
