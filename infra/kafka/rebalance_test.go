package kafka_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
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
	await := func(members int) map[string][]int32 {
		t.Helper()
		for end := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
			by, all := owned(), 0
			for _, list := range by {
				all += len(list)
			}
			if len(by) == members && all == events.Partitions {
				return by
			}
			if time.Now().After(end) {
				t.Fatalf("the members own %v, want all partitions in %d of them", by, members)
			}
		}
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
