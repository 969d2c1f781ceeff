package deadletters

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

const readLetters = `
SELECT id, partition, tenant_id, stage, status, code, reason, details, producer_event_id, feature,
       source_position, topic, kafka_partition, kafka_offset, payload::text, retry_count, first_failed_at, last_failed_at
FROM dead_letter_events
WHERE generation = $1 AND id = ANY ($2::uuid[])`

func (h *Handler) load(ctx context.Context, tx pgx.Tx, in projections.Generation, ids []uuid.UUID) (map[uuid.UUID]*Row, error) {
	rows, err := tx.Query(ctx, readLetters, in.Number, ids)
	if err != nil {
		return nil, fmt.Errorf("read dead_letter_events: %w", err)
	}
	defer rows.Close()
	letters := make(map[uuid.UUID]*Row)
	for rows.Next() {
		d := new(Row)
		var details []byte
		err := rows.Scan(&d.id, &d.partition, &d.tenant, &d.stage, &d.status, &d.code, &d.reason, &details, &d.producerEventID, &d.feature,
			&d.source, &d.topic, &d.kafkaPartition, &d.kafkaOffset, &d.payload, &d.retries, &d.firstFailed, &d.lastFailed)
		if err == nil {
			err = query.UnmarshalOptional(details, &d.details)
		}
		if err != nil {
			return nil, fmt.Errorf("read dead_letter_events: %w", err)
		}
		letters[d.id] = d
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read dead_letter_events: %w", err)
	}
	return letters, nil
}

// letterColumns are the rows of the upsert, column by column.
type letterColumns struct {
	ids, tenants                     []uuid.UUID
	partitions                       []int16
	stages, statuses, codes, reasons []string
	details, payloads                []*string
	eventIDs, features, topics       []string
	sources                          []int64
	kafkaPartitions                  []*int16
	kafkaOffsets                     []*int64
	retries                          []int32
	firstFailed, lastFailed          []time.Time
}

func (c *letterColumns) add(d *Row) error {
	details, err := json.Marshal(d.details)
	if err != nil {
		return fmt.Errorf("write a dead letter's details: %w", err)
	}
	var given *string
	if string(details) != "{}" {
		given = text(details)
	}
	c.ids, c.tenants, c.partitions = append(c.ids, d.id), append(c.tenants, d.tenant), append(c.partitions, d.partition)
	c.stages, c.statuses = append(c.stages, d.stage), append(c.statuses, d.status)
	c.codes, c.reasons = append(c.codes, d.code), append(c.reasons, d.reason)
	c.details, c.payloads = append(c.details, given), append(c.payloads, d.payload)
	c.eventIDs, c.features, c.topics = append(c.eventIDs, d.producerEventID), append(c.features, d.feature), append(c.topics, d.topic)
	c.sources = append(c.sources, d.source)
	c.kafkaPartitions, c.kafkaOffsets = append(c.kafkaPartitions, d.kafkaPartition), append(c.kafkaOffsets, d.kafkaOffset)
	c.retries = append(c.retries, d.retries)
	c.firstFailed, c.lastFailed = append(c.firstFailed, d.firstFailed), append(c.lastFailed, d.lastFailed)
	return nil
}

func (h *Handler) write(ctx context.Context, tx pgx.Tx, in projections.Generation, letters []*Row) error {
	if len(letters) == 0 {
		return nil
	}
	var c letterColumns
	for _, d := range letters {
		if err := c.add(d); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, writeDeadLetters, in.Number, c.ids, c.partitions, c.tenants, c.stages, c.statuses, c.codes, c.reasons, c.details,
		c.eventIDs, c.features, c.sources, c.topics, c.kafkaPartitions, c.kafkaOffsets, c.payloads, c.retries, c.firstFailed, c.lastFailed)
	if err != nil {
		return fmt.Errorf("write dead_letter_events: %w", err)
	}
	return nil
}
