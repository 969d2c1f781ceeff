package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/internal/must"
)

// topics are the registry's names in the order of their numbers, without usage.commands, whose records are not of the log.
func topics() []string {
	return []string{"usage.raw", "usage.validated", "usage.dead-letter", "usage.duplicates",
		"meterplex.commands", "meterplex.catalogue", "meterplex.billing", "meterplex.notifications", "usage.reservations"}
}

// groups are the consumers of topics.
func groups() map[string]string {
	return map[string]string{"meterplex-usage-validator": "usage.raw", "meterplex-usage-aggregator": "usage.validated",
		"meterplex-dead-letter-handler": "usage.dead-letter", "meterplex-command-handler": "meterplex.commands"}
}

// kafka is a client of the deployment's brokers.
func (w *deployment) kafka(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(w.brokers().Brokers()...))...)
	must.OK(w.t, err)
	return c
}

// topicNames are the names of the test's topics.
func topicNames(w *deployment) []string {
	var names []string
	for _, t := range topics() {
		names = append(names, w.prefix+t)
	}
	return names
}

// topicPosition identifies an event by topic number and position.
type topicPosition struct{ topic, position string }

// eachRecord reads all topics from beginning to end.
func eachRecord(w *deployment, take func(*kgo.Record)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	client := w.kafka(kgo.ConsumeTopics(topicNames(w)...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	var ends kadm.ListedOffsets
	within(w.t, "the topics' end offsets are known", func(ctx context.Context) (bool, string) {
		var err error
		ends, err = kadm.NewClient(client).ListEndOffsets(ctx, topicNames(w)...)
		err = errors.Join(err, ends.Error())
		return err == nil, fmt.Sprint(err)
	})
	left := map[string]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Topic+"/"+strconv.Itoa(int(o.Partition))] = o.Offset
		}
	})
	for len(left) > 0 {
		fetched := client.PollFetches(ctx)
		if ctx.Err() != nil {
			w.t.Fatalf("the topics cannot be read to their ends: %v", left)
		}
		fetched.EachRecord(func(r *kgo.Record) {
			take(r)
			if at := r.Topic + "/" + strconv.Itoa(int(r.Partition)); r.Offset+1 >= left[at] {
				delete(left, at)
			}
		})
	}
}
