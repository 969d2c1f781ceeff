package periods

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/prices"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads reads periods and their adjustments, for operators. Each answer comes from one snapshot of the database.
type Reads struct {
	query.DB
	Sums prices.Sums // of charges
}

// Period describes a tenant's period, by its last close or by an earlier snapshot of it.
type Period struct {
	TenantID       uuid.UUID        `json:"tenantId"`
	PeriodKey      string           `json:"periodKey"`
	PeriodStart    *time.Time       `json:"periodStart"`
	PeriodEnd      *time.Time       `json:"periodEnd"`
	State          string           `json:"state" enum:"OPEN,CLOSING,CLOSED"` // the present one, whichever snapshot is read
	Snapshot       *int             `json:"snapshot"`
	SagaID         *uuid.UUID       `json:"sagaId" nullable:"true"`
	CutPosition    *events.Position `json:"cutPosition" nullable:"true"`
	FrozenPosition *events.Position `json:"frozenPosition" nullable:"true"`
	ClosedAt       *time.Time       `json:"closedAt"`
	Logic          *string          `json:"logic"`
	LogicHash      *string          `json:"logicHash"`
	FiguresHash    *string          `json:"figuresHash"`
	ChargesHash    *string          `json:"chargesHash" doc:"Hex SHA-256 of the frozen charges; null without a snapshot."`
	Despite        []string         `json:"despite"`
	Partial        bool             `json:"partial"`
	Missing        []string         `json:"missing"`
}

// PeriodLine is a line of a snapshot. Net and Unreconciled compare it with the live figure: nil unless the period is closed with this
// snapshot.
type PeriodLine struct {
	Feature          string       `json:"feature"`
	SubscriptionID   uuid.UUID    `json:"subscriptionId"`
	Frozen           json.Number  `json:"frozen"`
	FrozenEventCount int64        `json:"frozenEventCount"`
	Pending          json.Number  `json:"pending"`
	Approved         json.Number  `json:"approved"`
	Waived           json.Number  `json:"waived"`
	Billable         json.Number  `json:"billable"` // frozen and approved
	Net              *json.Number `json:"net" nullable:"true"`
	NetEventCount    *int64       `json:"netEventCount"`
	Unreconciled     *json.Number `json:"unreconciled" nullable:"true"`
}

// Detail is a period with a page of its lines. Next is the cursor of the next page, "" on the last.
type Detail struct {
	Period
	Lines []PeriodLine
	AsOf  events.Position
	Next  string
}

// $1 is the tenant, $2 a period ("": all that were ever closed), $3 a snapshot (0: that of the last change). A snapshot is there from the
// request to close on; its figures are there once it is frozen.
const readPeriods = `
SELECT q.period_key, last.change, q.snapshot, q.position, s.frozen_position, s.frozen_at, s.logic, s.logic_hash, s.figures_hash,
s.charges_hash,
  coalesce(s.despite, g.despite, '{}'), g.id, coalesce(g.state = 'PARTIAL', false), CASE WHEN g.ended_at IS NULL THEN coalesce(g.missing,
  '{}') ELSE '{}' END
FROM (SELECT DISTINCT ON (period_key) period_key, snapshot, change FROM period_changes
  WHERE tenant_id = $1 AND ($2 = '' OR period_key = $2) ORDER BY period_key, position DESC) last
JOIN period_changes q ON q.tenant_id = $1 AND q.period_key = last.period_key AND q.change = 'close_requested'
  AND q.snapshot = CASE WHEN $3::int > 0 THEN $3 ELSE last.snapshot END
LEFT JOIN period_snapshots s ON s.tenant_id = $1 AND s.period_key = q.period_key AND s.snapshot = q.snapshot
LEFT JOIN sagas g ON g.kind = 'period_close' AND g.tenant_id = $1 AND g.key = q.period_key || '/' || q.snapshot`

// Periods with usage, by the live figures.
const readUsedPeriods = `
SELECT DISTINCT u.period_key FROM (SELECT DISTINCT generation, period_key FROM usage_aggregates WHERE tenant_id = $1) u
WHERE u.generation = live_generation('` + projections.ProjectionUsage + `', $1, u.period_key)`

func scanPeriod(rows pgx.Rows, tenant uuid.UUID) (p Period, err error) {
	partition := events.PartitionOf(tenant)
	p.TenantID = tenant
	var change string
	var snapshot int
	var cut int64
	var frozen *int64
	err = rows.Scan(&p.PeriodKey, &change, &snapshot, &cut, &frozen, &p.ClosedAt, &p.Logic, &p.LogicHash, &p.FiguresHash, &p.ChargesHash,
		&p.Despite, &p.SagaID, &p.Partial, &p.Missing)
	p.State = (&domain.PeriodChange{Change: change}).State()
	p.Snapshot, p.CutPosition = &snapshot, &events.Position{Partition: partition, Number: cut}
	if frozen != nil {
		p.FrozenPosition = &events.Position{Partition: partition, Number: *frozen}
	}
	return p.bounded(), err
}

// open describes a period that was never closed.
func open(tenant uuid.UUID, key string) Period {
	p := Period{TenantID: tenant, PeriodKey: key, State: domain.StateOpen, Despite: []string{}, Missing: []string{}}
	return p.bounded()
}

func (p Period) bounded() Period {
	if start, end, ok := domain.PeriodBounds(p.PeriodKey); ok {
		p.PeriodStart, p.PeriodEnd = &start, &end
	}
	return p
}

// newerPeriod orders period keys: the newest first, a year behind its months, lifetime last.
func newerPeriod(a, b string) int {
	if (a == domain.PeriodLifetime) != (b == domain.PeriodLifetime) {
		return map[bool]int{true: 1, false: -1}[a == domain.PeriodLifetime]
	}
	return strings.Compare(b, a)
}

// Periods lists a tenant's periods that have usage or were ever closed, newest first, at most limit after a period key. A tenant has few.
func (r *Reads) Periods(ctx context.Context, tenant uuid.UUID, after string, limit int) (page []Period, err error) {
	found := map[string]Period{}
	err = r.Snapshot(ctx, query.Viewer{Operator: true},
		query.New(readUsedPeriods, []any{tenant}, query.Each(func(rows pgx.Rows) error {
			var key string
			err := rows.Scan(&key)
			found[key] = open(tenant, key)
			return err
		})),
		query.New(readPeriods, []any{tenant, "", 0}, query.Each(func(rows pgx.Rows) error {
			p, err := scanPeriod(rows, tenant)
			found[p.PeriodKey] = p
			return err
		})))
	page = []Period{}
	for key, p := range found {
		if after == "" || newerPeriod(after, key) < 0 {
			page = append(page, p)
		}
	}
	slices.SortFunc(page, func(a, b Period) int { return newerPeriod(a.PeriodKey, b.PeriodKey) })
	return page[:min(len(page), limit)], err
}

// Query asks for a period with at most Limit of its lines after the cursor After, "" for the first. Snapshot is 0 for that of the last
// change.
type Query struct {
	TenantID  uuid.UUID
	PeriodKey string
	Snapshot  int
	Limit     int
	After     string
}

// $5 and $6 are the last line of the previous page.
var readLines = `
SELECT feature, subscription_id, frozen::text, frozen_count, pending::text, approved::text, waived::text, (frozen + approved)::text,
  CASE WHEN present THEN net::text END, CASE WHEN present THEN net_count END, CASE WHEN present THEN unreconciled::text END
FROM (` + lines("WHERE (k.feature, k.subscription_id) > ($5::text, $6::uuid) ORDER BY k.feature, k.subscription_id LIMIT $7") +
	`) l ORDER BY feature, subscription_id`

// Period returns a period with a page of its lines, or refuses with snapshot_not_found. A period that was never closed has no snapshot and
// no lines.
func (r *Reads) Period(ctx context.Context, q Query) (d Detail, err error) {
	after, err := parseLineCursor(q.After)
	if err != nil {
		return d, err
	}
	d.Lines = []PeriodLine{}
	err = r.Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) (err error) {
		if d.Period, d.AsOf, err = standing(ctx, tx, q); err != nil || d.FrozenPosition == nil {
			return err
		}
		var next *lineCursor
		d.Lines, next, err = page(ctx, tx, &d.Period, after, q.Limit)
		d.Next = next.String()
		return err
	})
	return d, err
}

// standing reads a period without its lines, and the position up to which its live figures are complete.
func standing(ctx context.Context, tx pgx.Tx, q Query) (p Period, asOf events.Position, err error) {
	p = open(q.TenantID, q.PeriodKey)
	var stands query.Standing
	err = query.RunAll(ctx, tx, query.ReadStanding(query.AggregatesSource(), q.TenantID, &stands),
		query.New(readPeriods, []any{q.TenantID, q.PeriodKey, q.Snapshot}, query.Each(func(rows pgx.Rows) (err error) {
			p, err = scanPeriod(rows, q.TenantID)
			return err
		})))
	if err == nil && p.Snapshot == nil && q.Snapshot != 0 {
		err = &domain.Error{Code: "snapshot_not_found", Message: "The period " + q.PeriodKey + " has no snapshot " +
			strconv.Itoa(q.Snapshot)}
	}
	return p, stands.AsOf(q.TenantID, query.Wait{}), err
}

// lineCursor is the cursor of a page: its last line; the zero value is before the first.
type lineCursor struct {
	feature      string
	subscription uuid.UUID
}

// String returns "" for nil: no page follows.
func (p *lineCursor) String() string {
	if p == nil {
		return ""
	}
	return p.feature + "/" + p.subscription.String() // no feature has a slash
}

// page reads at most limit lines of a frozen snapshot after a cursor. next is that of the next page, nil on the last.
func page(ctx context.Context, tx pgx.Tx, p *Period, after lineCursor, limit int) (lines []PeriodLine, next *lineCursor, err error) {
	lines = []PeriodLine{}
	args := []any{p.TenantID, events.PartitionOf(p.TenantID), p.PeriodKey, *p.Snapshot, after.feature, after.subscription, limit + 1}
	err = query.Run(ctx, tx, query.New(readLines, args, query.Into(&lines, scanLine)))
	if err == nil && len(lines) > limit {
		lines = lines[:limit]
		next = &lineCursor{lines[limit-1].Feature, lines[limit-1].SubscriptionID}
	}
	return lines, next, err
}

func parseLineCursor(after string) (p lineCursor, err error) {
	if after == "" {
		return p, nil
	}
	feature, id, _ := strings.Cut(after, "/")
	subscription, err := uuid.Parse(id)
	if err != nil || !query.Storable(feature) {
		return p, query.ErrCursorInvalid
	}
	return lineCursor{feature, subscription}, nil
}

func scanLine(rows pgx.Rows) (l PeriodLine, err error) {
	var frozen, pending, approved, waived, billable string
	var net, unreconciled *string
	err = rows.Scan(&l.Feature, &l.SubscriptionID, &frozen, &l.FrozenEventCount, &pending, &approved, &waived, &billable, &net,
		&l.NetEventCount, &unreconciled)
	number := func(text string) json.Number { return json.Number(text) }
	l.Frozen, l.Pending, l.Approved, l.Waived, l.Billable = number(frozen), number(pending), number(approved), number(waived),
		number(billable)
	l.Net, l.Unreconciled = (*json.Number)(net), (*json.Number)(unreconciled)
	return l, err
}
