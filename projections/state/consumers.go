package state

import (
	"cmp"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Lag is how far a consumer is behind the last event of its topic in a partition. Its joined generations are all at its position.
type Lag struct {
	Consumer  string
	Topic     events.Topic // 0: the whole log
	Partition int16
	Position  int64
	Behind    int64   // positions, including those of other topics: the consumer passes them the same way
	Seconds   float64 // age of the oldest event that it has not passed
}

// Lags are those of all consumers.
type Lags []Lag

// Generations that are being rebuilt are not joined yet. $1 maps consumers to topics.
var lagsSQL = `SELECT c.consumer, coalesce(t.topic, 0)::smallint, c.partition, c.position, greatest(s.source - c.position, 0),
  coalesce(greatest(extract(epoch FROM now() - n.recorded_at), 0), 0)::float8
 FROM (SELECT consumer, partition, min(position) AS position FROM consumer_checkpoints WHERE joined GROUP BY consumer, partition) c
 JOIN log_heads h USING (partition)
 CROSS JOIN LATERAL (SELECT ($1::jsonb ->> c.consumer)::int AS topic) t
 CROSS JOIN LATERAL (SELECT CASE WHEN t.topic IS NULL THEN h.position ELSE h.topic_positions[t.topic] END AS source) s
 CROSS JOIN LATERAL (SELECT ` + projections.FirstWaiting("c.partition", "c.position", "s.source", "t.topic") + ` AS recorded_at) n`

// Statement reads the lags of all consumers.
func (l *Lags) Statement() query.Statement {
	topics := map[string]events.Topic{}
	for _, t := range events.Topics() {
		if t.Consumer != "" {
			topics[t.Consumer] = t.Topic
		}
	}
	return rows((*[]Lag)(l), lagsSQL, topics)
}

// Consumer is the lag of a consumer.
type Consumer struct {
	Name       string       `json:"name" example:"meterplex-usage-aggregator"`
	Projection *string      `json:"projection" doc:"The projection that it updates; null without one." example:"usage_aggregates"`
	Positions  int64        `json:"positions" example:"120"`
	Seconds    float64      `json:"seconds" doc:"Age of the oldest event that it has not processed; 0 if it has processed all." example:"0.4"`
	Topic      events.Topic `json:"-"` // 0: the whole log
	Checkpoint int64        `json:"-"` // the sum of its positions
}

// Consumers sums the partitions of each consumer, by name.
func (l Lags) Consumers(list []projections.Projection) []Consumer {
	all := []Consumer{}
	for _, one := range l {
		at := slices.IndexFunc(all, func(c Consumer) bool { return c.Name == one.Consumer })
		if at < 0 {
			at = len(all)
			all = append(all, Consumer{Name: one.Consumer, Topic: one.Topic})
		}
		c := &all[at]
		c.Checkpoint, c.Positions, c.Seconds = c.Checkpoint+one.Position, c.Positions+one.Behind, max(c.Seconds, one.Seconds)
	}
	for i := range list {
		if at := slices.IndexFunc(all, func(c Consumer) bool { return c.Name == list[i].Consumer.Name }); at >= 0 {
			all[at].Projection = &list[i].Name
		}
	}
	slices.SortFunc(all, func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Furthest returns the consumer whose oldest event is the oldest; the zero Consumer if no consumer is behind.
func (l Lags) Furthest() Consumer {
	return slices.MaxFunc(append(l.Consumers(nil), Consumer{}), func(a, b Consumer) int { return cmp.Compare(a.Seconds, b.Seconds) })
}
