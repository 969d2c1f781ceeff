package query

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// A recorded position p has passed a projection X, for a tenant, when
//
//	every event of the tenant recorded up to p has its verdict, and
//	every one of these verdicts that is a yes is folded by X, and
//	if X reads the log itself, p is folded by X.
//
// With head H, the validator's checkpoint v, X's checkpoint x, raw the positions
// of the tenant's events on usage.raw, and V(r) the position of the yes to r:
//
//	decided = min{r ∈ raw: r > v} − 1, or H if no such r exists
//	passed  = min(decided, min{r ∈ raw: V(r) > x} − 1, min{g re-aggregated: g > x} − 1)
//	          and, of a reader of the log, min(that, x)
//
// v, x and H only grow, and a verdict is never revoked, so passed never falls.
// Verdicts have the order of their events: the first yes beyond x determines the
// first r. consumer_standing (migrations) computes passed in the snapshot of the
// figures, so that the position is true of them.
//
// "Decided" can exceed the validator's checkpoint (the head, if the checkpoint is
// at the last event of its topic): it holds for the tenant alone, so that another
// tenant's backlog does not delay it.

// source is a projection whose progress can be read, and its consumer.
type source struct {
	projection string
	consumer   string
	wholeLog   bool
}

func AggregatesSource() source {
	return source{projection: projections.ProjectionUsage, consumer: events.GroupAggregator}
}

func EntitlementsSource() source {
	return source{projection: projections.ProjectionEntitlements, consumer: events.GroupEntitlements, wholeLog: true}
}

func SeriesSource() source {
	return source{projection: projections.ProjectionSeries, consumer: events.GroupSeries, wholeLog: true}
}

// standingSpan bounds how far from a checkpoint the search for the tenant's next event
// goes: some milliseconds. Further behind, positions are understated.
const standingSpan = 8192

// Standing is a consumer's progress for a tenant, in numbers of its partition.
type Standing struct {
	Head          int64
	decided       int64
	lastValidated int64
	Folded        int64
	passed        int64
	MovedAt       time.Time // when the consumer's checkpoint moved last
}

const readStanding = `
SELECT s.head, s.decided, s.last_validated, s.folded, s.passed, s.moved_at
FROM consumer_standing($1::smallint, $2::uuid, $3::text, NULL, $4::text, $5::boolean, $6::bigint) s`

var ErrNoLiveGeneration = errors.New("the projection has no live generation or no checkpoints")

// ReadStanding reads the progress of a projection's live generation for a tenant. All joined
// generations have the same position.
func ReadStanding(src source, tenant uuid.UUID, into *Standing) Statement {
	return Statement{
		SQL:  readStanding,
		Args: []any{events.PartitionOf(tenant), tenant, src.projection, src.consumer, src.wholeLog, int64(standingSpan)},
		Scan: Each(func(rows pgx.Rows) error {
			var head, decided, lastValidated, folded, passed *int64
			var movedAt *time.Time
			if err := rows.Scan(&head, &decided, &lastValidated, &folded, &passed, &movedAt); err != nil {
				return err
			}
			if movedAt == nil {
				return ErrNoLiveGeneration
			}
			*into = Standing{*head, *decided, *lastValidated, *folded, *passed, *movedAt}
			return nil
		}),
	}
}

// AsOf is the position to report with figures: the passed one, or the awaited one.
func (s *Standing) AsOf(tenant uuid.UUID, w Wait) events.Position {
	p := events.Position{Partition: events.PartitionOf(tenant), Number: s.passed}
	if w.MinPosition != nil && w.MinPosition.Number > p.Number {
		p.Number = w.MinPosition.Number // await has proved it
	}
	return p
}

// Passed is the recorded position that has passed the projection.
func (s *Standing) Passed() int64 { return s.passed }

// Intervals of polling for a position: short at first, if it is nearly reached.
const (
	PollFirst = 2 * time.Millisecond
	PollLast  = 20 * time.Millisecond
)

// AwaitPassed returns when the wait's position has passed the projection. A read that
// begins afterwards sees it.
func (d *DB) AwaitPassed(ctx context.Context, v Viewer, src source, tenant uuid.UUID, w Wait) error {
	if w.MinPosition == nil {
		return nil
	}
	if w.MinPosition.Partition != events.PartitionOf(tenant) {
		return PositionInvalid(fmt.Sprintf("minPosition %s is in another partition than the tenant's log, %d", w.MinPosition,
			events.PartitionOf(tenant)))
	}
	a := arrival{position: w.MinPosition.Number, target: -1, wholeLog: src.wholeLog}
	deadline := time.Now().Add(w.For)
	for poll := PollFirst; ; poll = min(2*poll, PollLast) {
		var s Standing
		if err := d.Snapshot(ctx, v, ReadStanding(src, tenant, &s)); err != nil {
			return err
		}
		if a.position > s.Head {
			return PositionInvalid(fmt.Sprintf("minPosition %s is beyond the end of the log, %d", w.MinPosition, s.Head))
		}
		left := time.Until(deadline)
		switch {
		case a.arrived(&s):
			return nil
		case left <= 0:
			return ErrProjectionBehind
		}
		consumer, position := a.next(src)
		if err := d.Moves.Wait(ctx, consumer, w.MinPosition.Partition, position, min(poll, left), min(PollLast, left)); err != nil {
			return err
		}
	}
}

// arrival follows one position through polls of a moving consumer. Once the
// position is decided, the last verdict of that moment is the one to fold: it does not
// move, even if traffic never lets the consumer catch up.
type arrival struct {
	position int64
	target   int64 // -1: not known yet
	wholeLog bool
}

// next is the next event to wait for: the verdict, then its fold.
func (a *arrival) next(src source) (consumer string, position int64) {
	if a.target < 0 {
		return events.GroupValidator, a.position
	}
	return src.consumer, a.target
}

func (a *arrival) arrived(s *Standing) bool {
	if s.passed >= a.position {
		return true
	}
	if a.target < 0 && s.decided >= a.position {
		a.target = s.lastValidated
		if a.wholeLog {
			a.target = max(a.target, a.position)
		}
	}
	return a.target >= 0 && s.Folded >= a.target
}

var readLettersStanding = events.SQL(`
SELECT h.topic_positions[{usage.dead-letter}], c.position
FROM log_heads h
JOIN projection_pointers p ON p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id = '00000000-0000-0000-0000-000000000000'
JOIN consumer_checkpoints c ON c.consumer = 'meterplex-dead-letter-handler' AND c.generation = p.generation AND c.partition = h.partition
WHERE h.partition = $1`)

// Await is the wait of reads of the log, or of dead letters: awaitAll. Without a tenant
// a position has no meaning.
func (d *DB) Await(ctx context.Context, v Viewer, tenant *uuid.UUID, w Wait) error {
	if w.MinPosition == nil {
		return nil
	}
	if tenant == nil {
		return PositionInvalid("minPosition needs tenantId here: positions of different tenants do not compare")
	}
	return d.AwaitAll(ctx, v, *tenant, w)
}

// AwaitAll returns when a position has passed the aggregates and, with the events that the
// validator and the aggregator refused by then, the dead letters: lists of events
// and of failures show both.
func (d *DB) AwaitAll(ctx context.Context, v Viewer, tenant uuid.UUID, w Wait) error {
	if w.MinPosition == nil {
		return nil
	}
	deadline := time.Now().Add(w.For)
	if err := d.AwaitPassed(ctx, v, AggregatesSource(), tenant, w); err != nil {
		return err
	}
	target := int64(-1)
	for poll := PollFirst; ; poll = min(2*poll, PollLast) {
		var last, folded int64
		err := d.Snapshot(ctx, v, New(readLettersStanding, []any{events.PartitionOf(tenant)}, Each(func(rows pgx.Rows) error {
			return rows.Scan(&last, &folded)
		})))
		if err != nil {
			return err
		}
		if target < 0 {
			target = last // fixed, even if more events fail
		}
		left := time.Until(deadline)
		switch {
		case folded >= target:
			return nil
		case left <= 0:
			return ErrProjectionBehind
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(poll, left)):
		}
	}
}
