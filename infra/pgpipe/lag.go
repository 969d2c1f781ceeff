package pgpipe

import (
	"context"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// lagLimit bounds the count: the exact lag of a group far behind is not needed.
const lagLimit = 10_000

const lagRows = `
SELECT count(*) FROM (
  SELECT FROM %[2]s o JOIN %[1]s m
    ON (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)
  WHERE o.consumer_group = $1 LIMIT $2) behind`

// Lag returns, for each topic of the registry, the number of rows that a group has not passed, at most
// 10,000, and 0 if the group does not read the topic.
func Lag(ctx context.Context, cfg Config, group string) (map[events.Topic]int64, error) {
	lags := map[events.Topic]int64{}
	for _, t := range events.Topics() {
		n, err := LagOf(ctx, cfg, group, t.Topic)
		if err != nil {
			return nil, err
		}
		lags[t.Topic] = n
	}
	return lags, nil
}

// LagOf returns the number of rows of a topic that a group has not passed, as Lag does.
func LagOf(ctx context.Context, cfg Config, group string, topic events.Topic) (n int64, err error) {
	statement := fmt.Sprintf(lagRows, cfg.messagesTable(topic.Name()), cfg.offsetsTable(topic.Name()))
	if err := cfg.DB.QueryRowContext(ctx, statement, group, lagLimit).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the lag of %s on %s: %w", group, topic.Name(), err)
	}
	return n, nil
}
