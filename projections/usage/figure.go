package usage

import (
	"cmp"
	"context"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections/query"
)

// figureWalk reads the verdicts of one figure in the order of the log, piece by piece. An index
// finds them by feature and period, as the verdicts name them: a fold that counts a verdict
// in another figure is refused (Fold.inItsFigure).
type figureWalk struct {
	verdicts        *tenantVerdicts
	feature, period string
	after           int64 // read up to here
	upTo            int64
	asOf            *int64 // only verdicts on events recorded up to here
	first           int    // verdicts of the first piece; 0: firstPiece
	most            int    // verdicts that it reads before it is cut; 0: all
	cut             bool   // more verdicts may follow after
}

// Sizes of pieces: of a figure that may have begun later, of a page, and of a whole figure.
const (
	fewVerdicts = 8
	firstPiece  = 128
	mostPiece   = 4096
)

const readFigureVerdicts = `
SELECT ` + verdictColumns + `
FROM verdict_positions($1, $2, $3, $4, $5, $6, $7) AS v (position)
CROSS JOIN LATERAL (SELECT e.* FROM event_log e WHERE e.partition = $1 AND e.position = v.position LIMIT 1) l
ORDER BY l.position`

// each visits the figure's verdicts until visit returns false, or until the walk is cut.
func (f *figureWalk) each(ctx context.Context, tx pgx.Tx, visit func(c *countedUsage, counted bool) (more bool)) error {
	left := cmp.Or(f.most, math.MaxInt)
	for size := min(cmp.Or(f.first, firstPiece), left); ; size = min(2*size, mostPiece, left) {
		piece, err := f.piece(ctx, tx, size)
		if err != nil {
			return err
		}
		for i := range piece {
			c := &piece[i]
			if f.asOf != nil && c.cause > *f.asOf {
				if c.again {
					continue
				}
				return nil // verdicts have the order of their causes
			}
			if !visit(c, c.folds) {
				return nil
			}
		}
		if len(piece) < size {
			return nil
		}
		if left -= size; left == 0 {
			f.cut = true
			return nil
		}
	}
}

// piece reads the next verdicts, with their causes and whether they count.
func (f *figureWalk) piece(ctx context.Context, tx pgx.Tx, size int) ([]countedUsage, error) {
	t := f.verdicts
	list, err := t.read(ctx, tx, readFigureVerdicts, t.partition, t.tenant, f.feature, f.period, f.after, f.upTo, size)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	f.after = list[len(list)-1].position
	if f.asOf == nil {
		return list, nil
	}
	return list, t.findCauses(ctx, tx, list, *f.asOf)
}

// read reads verdicts by a statement that returns verdictColumns, and whether they count.
func (t *tenantVerdicts) read(ctx context.Context, tx pgx.Tx, sql string, args ...any) (list []countedUsage, err error) {
	err = query.Run(ctx, tx, query.New(sql, args, query.Into(&list, t.scan)))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if err := t.readFailed(ctx, tx, list); err != nil {
		return nil, err
	}
	for i := range list {
		if _, failed := t.uncounted[list[i].position]; failed {
			list[i].folds = false
		}
	}
	return list, nil
}

const readFailedVerdicts = `SELECT verdict, code, reason FROM failed_verdicts($1, $2)`

// readFailed adds the verdicts that failed to fold, or that the pipe did not carry, to uncounted.
func (t *tenantVerdicts) readFailed(ctx context.Context, tx pgx.Tx, list []countedUsage) error {
	positions := make([]int64, len(list))
	for i := range list {
		positions[i] = list[i].position
	}
	return query.Run(ctx, tx, query.New(readFailedVerdicts, []any{t.tenant, positions}, query.Each(t.scanUncounted)))
}

const readEventIDs = `
SELECT given.number, l.event_id FROM unnest($2::bigint[]) AS given (number)
CROSS JOIN LATERAL (SELECT e.event_id FROM event_log e WHERE e.partition = $1 AND e.position = given.number LIMIT 1) l`

// findCauses sets the causes of verdicts. A cause is before its verdict, so that it matters only
// for the verdicts behind asOf; it is the recorded event, unless that was retried.
func (t *tenantVerdicts) findCauses(ctx context.Context, tx pgx.Tx, list []countedUsage, asOf int64) error {
	var raws []int64
	for i := range list {
		if c := &list[i]; c.position > asOf && !c.again {
			raws = append(raws, c.verdict.RawPosition)
		}
	}
	if raws == nil {
		return nil
	}
	ids := make(map[int64]uuid.UUID, len(raws))
	err := query.Run(ctx, tx, query.New(readEventIDs, []any{t.partition, raws}, query.Each(func(rows pgx.Rows) error {
		var number int64
		var id uuid.UUID
		err := rows.Scan(&number, &id)
		ids[number] = id
		return err
	})))
	for i := range list {
		c := &list[i]
		if err != nil || c.position <= asOf || c.again || c.causation != nil && *c.causation == ids[c.verdict.RawPosition] {
			continue
		}
		if err = t.readRetried(ctx, tx); err == nil {
			c.cause = causeAmong(t.retried, c.verdict.RawPosition, c.causation)
		}
	}
	return err
}

// wholeFigure walks a figure from its beginning: as of a position, or up to another.
func (t *tenantVerdicts) wholeFigure(feature, period string, asOf *int64) *figureWalk {
	return &figureWalk{verdicts: t, feature: feature, period: period, upTo: math.MaxInt64, asOf: asOf}
}
