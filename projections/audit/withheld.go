package audit

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// WithheldRecord is an event whose record was permanently refused: an empty record has its place on the topic.
type WithheldRecord struct {
	Position     events.Position `json:"position" doc:"Of the event in the log."`
	Topic        string          `json:"topic" example:"usage.raw"`
	Subject      string          `json:"subject" doc:"Type of the event." example:"meterplex.usage.event.recorded.v1"`
	TenantID     uuid.UUID       `json:"tenantId"`
	Reason       string          `json:"reason" doc:"Why the record was refused." example:"MESSAGE_TOO_LARGE"`
	WithheldAt   time.Time       `json:"withheldAt"`
	Late         bool            `json:"late"`
	DeadLetterID *uuid.UUID      `json:"deadLetterId" doc:"Dead letter of the event; null if late."`
}

// WithheldQuery asks for withheld records. A nil TenantID and Topic 0 mean all.
type WithheldQuery struct {
	TenantID *uuid.UUID
	Topic    events.Topic
	Limit    int
	After    string
}

// lastTopic is beyond the numbers of all topics, with room for those of later releases.
const lastTopic = 31

// A page reads its own rows of each topic, and no others: the index of the topic, or of the tenant, has the order
// of the list.
const (
	withheldColumns = `
SELECT w.partition, w.position, w.topic, coalesce(l.subject, 0), w.tenant_id, w.reason, w.withheld_at, w.late, w.dead_letter_id
FROM (SELECT r.* FROM generate_series($1::int, $2::int) t (topic) CROSS JOIN LATERAL (
        SELECT * FROM withheld_records r WHERE r.topic = t.topic AND (r.withheld_at, r.partition, r.position) < ($3::timestamptz,
        $4::smallint, $5::bigint)`
	withheldOrder = `
         ORDER BY r.withheld_at DESC, r.partition DESC, r.position DESC LIMIT $6) r
      ORDER BY r.withheld_at DESC, r.partition DESC, r.position DESC LIMIT $6) w
LEFT JOIN event_log_rows l ON l.partition = w.partition AND l.position = w.position
ORDER BY w.withheld_at DESC, w.partition DESC, w.position DESC`

	readWithheld       = withheldColumns + withheldOrder
	readTenantWithheld = withheldColumns + ` AND r.tenant_id = $7` + withheldOrder
)

// Withheld lists withheld records, newest first, for operators.
func (r *Reads) Withheld(ctx context.Context, q WithheldQuery) (query.Page[WithheldRecord], error) {
	at, partition, position, err := withheldAfter(q.After)
	if err != nil {
		return query.Page[WithheldRecord]{}, err
	}
	limit, first, last := query.PageSize(q.Limit), 1, lastTopic
	if q.Topic != 0 {
		first, last = int(q.Topic), int(q.Topic)
	}
	sql, args := readWithheld, []any{first, last, at, partition, position, limit + 1}
	if q.TenantID != nil {
		sql, args = readTenantWithheld, append(args, *q.TenantID)
	}
	page := query.Page[WithheldRecord]{Data: []WithheldRecord{}}
	err = r.Snapshot(ctx, query.Viewer{Operator: true}, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		w, err := scanWithheld(rows)
		page.Data = append(page.Data, w)
		return err
	})))
	if err != nil {
		return query.Page[WithheldRecord]{}, err
	}
	if len(page.Data) > limit {
		w := &page.Data[limit-1]
		page.Data, page.Next = page.Data[:limit], fmt.Sprintf("%d/%s", w.WithheldAt.UnixMicro(), w.Position)
	}
	return page, nil
}

func scanWithheld(rows pgx.Rows) (w WithheldRecord, err error) {
	var topic events.Topic
	var subject events.Subject
	err = rows.Scan(&w.Position.Partition, &w.Position.Number, &topic, &subject, &w.TenantID, &w.Reason, &w.WithheldAt, &w.Late,
		&w.DeadLetterID)
	w.Topic = topic.Name()
	if w.Topic == "" {
		w.Topic = fmt.Sprintf("topic %d", topic)
	}
	if info, ok := subject.Info(); ok {
		w.Subject = info.Name()
	} else {
		w.Subject = fmt.Sprintf("subject %d", subject)
	}
	return w, err
}

// withheldAfter decodes the cursor of a page: the time and position of the last record before it.
func withheldAfter(text string) (at any, partition int16, position int64, err error) {
	if text == "" {
		return "infinity", math.MaxInt16, math.MaxInt64, nil
	}
	micros, number, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(micros, 10, 64)
	p, parsed := events.PositionFrom(number)
	if err != nil || !parsed {
		return nil, 0, 0, query.ErrCursorInvalid
	}
	return time.UnixMicro(n), p.Partition, p.Number, nil
}
