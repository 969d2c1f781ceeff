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
		statement := fmt.Sprintf(lagRows, cfg.messagesTable(t.Name), cfg.offsetsTable(t.Name))
		var n int64
		if err := cfg.DB.QueryRowContext(ctx, statement, group, lagLimit).Scan(&n); err != nil {
			return nil, fmt.Errorf("read the lag of %s on %s: %w", group, t.Name, err)
		}
		lags[t.Topic] = n
	}
	return lags, nil
}
