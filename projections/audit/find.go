package audit

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// EventRef names an event: by its position, or by its id.
type EventRef struct {
	Position *events.Position
	ID       uuid.UUID
}

// ParseEventRef parses a position or an id; else ErrNotFound.
func ParseEventRef(s string) (EventRef, error) {
	if p, err := events.ParsePosition(s); err == nil {
		return EventRef{Position: &p}, nil
	}
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return EventRef{}, query.ErrNotFound
	}
	return EventRef{ID: id}, nil
}

// Event returns one event; ErrNotFound if the log lacks it or it is another
// tenant's. Naming the tenant (nil: any) makes the search by id faster.
//
// Ids have no index: it would slow ingestion down. An event whose dedupe key is
// its id is found by the key. Others are found by the time in their id: ids are
// made right before the event is recorded, within idWindows. If a clock was far
// off, a short log is scanned whole; for a long log the error says which events
// an id alone finds.
func (r *Reads) Event(ctx context.Context, v query.Viewer, ref EventRef, tenant *uuid.UUID) (events.Envelope, error) {
	var found events.Envelope
	err := r.Within(ctx, v, func(ctx context.Context, tx pgx.Tx) (err error) {
		found, err = readEvent(ctx, tx, ref, tenant)
		return err
	})
	return found, err
}

func readEvent(ctx context.Context, tx pgx.Tx, ref EventRef, tenant *uuid.UUID) (events.Envelope, error) {
	position := ref.Position
	if position == nil {
		var err error
		if position, err = positionOf(ctx, tx, ref.ID, tenant); err != nil {
			return events.Envelope{}, err
		}
	}
	if position == nil {
		return events.Envelope{}, eventNotFound()
	}
	list, err := readEvents(ctx, tx, []events.Position{*position})
	if err != nil {
		return events.Envelope{}, err
	}
	if len(list) == 0 || tenant != nil && list[0].TenantID != *tenant {
		return events.Envelope{}, query.ErrNotFound
	}
	return list[0], nil
}

// idWindow is a range of recording times, relative to the time in an id.
type idWindow struct{ from, to time.Duration }

// idWindows are searched in order: nearly always the first has the event. An
// instance whose clock is ahead shifts others' recording times forward; one whose
// clock is behind makes ids that are too early.
func idWindows() []idWindow {
	return []idWindow{{-time.Millisecond, 5 * time.Second}, {-10 * time.Second, 15 * time.Minute}}
}

// idSpan bounds the positions of a partition searched for an id in each window, and
// the total length of a log (in the possible partitions) that is scanned whole.
const idSpan = 200_000

func eventNotFound() error {
	return query.RefusedAs("not_found", "There is no such event, or it is another's. In a long log an eventId alone finds only "+
		"events recorded within 15 minutes of their making, which a wrong clock may have prevented: name the position instead",
		query.ErrNotFound)
}

const (
	readPositionByKey = `SELECT l.partition, l.position FROM event_log l WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key = $3
		AND l.event_id = $4`
	readPositionByID  = `SELECT * FROM position_of_event($1, $2, $3, $4, $5, $6)`
	readPositionInAll = `SELECT * FROM position_of_event($1, $2, $3, '-infinity', 'infinity', $4)`
)

// positionOf finds an event by its id; nil if not found.
func positionOf(ctx context.Context, tx pgx.Tx, id uuid.UUID, tenant *uuid.UUID) (*events.Position, error) {
	if id.Version() != 7 {
		return nil, nil
	}
	key, partitions := events.Platform, projections.Scope{}.Partitions()
	if tenant != nil {
		key, partitions = *tenant, []int16{events.PartitionOf(*tenant)}
	}
	found, err := onePosition(ctx, tx, readPositionByKey, events.PartitionOf(key), key, events.KeyEvent(id), id)
	made := time.Unix(id.Time().UnixTime())
	for _, w := range idWindows() {
		if found != nil || err != nil {
			break
		}
		found, err = onePosition(ctx, tx, readPositionByID, id, tenant, partitions, made.Add(w.from), made.Add(w.to), int64(idSpan))
	}
	if found != nil || err != nil {
		return found, err
	}
	heads, err := readHeads(ctx, tx, partitions)
	if err != nil {
		return nil, err
	}
	length := int64(0)
	for _, head := range heads {
		length += head
	}
	if length > idSpan {
		return nil, nil
	}
	return onePosition(ctx, tx, readPositionInAll, id, tenant, partitions, int64(idSpan))
}

// readRecorders looks each tenant up by the unique key of the log. LIMIT keeps the planner from reading the log instead.
const readRecorders = `
SELECT given.tenant_id FROM unnest($1::smallint[], $2::uuid[]) AS given (partition, tenant_id) CROSS JOIN LATERAL (
  SELECT FROM event_log l WHERE l.partition = given.partition AND l.tenant_id = given.tenant_id AND l.dedupe_key = $3 LIMIT 1) found`

// Recorders returns those of the tenants that recorded usage with an eventId.
func (r *Reads) Recorders(ctx context.Context, v query.Viewer, eventID string, tenants []uuid.UUID) (found []uuid.UUID, err error) {
	partitions := make([]int16, len(tenants))
	for i, tenant := range tenants {
		partitions[i] = events.PartitionOf(tenant)
	}
	scan := func(rows pgx.Rows) (tenant uuid.UUID, err error) { return tenant, rows.Scan(&tenant) }
	err = r.Snapshot(ctx, v, query.New(readRecorders, []any{partitions, tenants, events.KeyUsage(eventID)}, query.Into(&found, scan)))
	return found, err
}

func onePosition(ctx context.Context, tx pgx.Tx, sql string, args ...any) (*events.Position, error) {
	var found *events.Position
	err := query.Run(ctx, tx, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		found = new(events.Position)
		return rows.Scan(&found.Partition, &found.Number)
	})))
	return found, err
}
