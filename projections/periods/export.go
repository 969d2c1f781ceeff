package periods

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// exportPage is the number of lines, and of adjustments, that an export reads at once.
const exportPage = 1000

// Exported is the period of an export. AsOf is nil if the export is settled: frozen, without a pending adjustment. It holds no live
// figures then, so that the same export gives the same answer for ever.
type Exported struct {
	Period
	AsOf *events.Position
}

// ExportWriter receives an export in its order. It keeps nothing for the reader: an export can be longer than memory.
type ExportWriter interface {
	Begin(Exported) error
	Line(*PeriodLine) error
	Adjustment(*Adjustment) error
}

// A session that waits for a reader of an export is idle in its transaction. It holds a snapshot, and no lock.
const patientSession = `SET LOCAL idle_in_transaction_session_timeout = '1min'`

const readPending = `SELECT EXISTS (SELECT FROM adjustments a WHERE a.tenant_id = $1 AND a.period_key = $2 AND a.snapshot = $3
	AND a.state = 'PENDING')`

// Export passes a snapshot of a period to w, with all its lines and adjustments, page by page in one snapshot of the database. It
// refuses with snapshot_not_found before it begins.
func (r *Reads) Export(ctx context.Context, q Query, w ExportWriter) error {
	return r.Heavy().Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, patientSession); err != nil {
			return fmt.Errorf("prepare to export: %w", err)
		}
		p, asOf, err := standing(ctx, tx, q)
		if err != nil {
			return err
		}
		e := Exported{p, &asOf}
		if p.FrozenPosition == nil {
			return w.Begin(e)
		}
		var pending bool
		if err := tx.QueryRow(ctx, readPending, p.TenantID, p.PeriodKey, *p.Snapshot).Scan(&pending); err != nil {
			return fmt.Errorf("look for pending adjustments: %w", err)
		}
		if !pending {
			e.AsOf, e.Partial, e.Missing = nil, false, []string{}
		}
		if err := w.Begin(e); err != nil {
			return err
		}
		if err := exportLines(ctx, tx, &e, w); err != nil {
			return err
		}
		return exportAdjustments(ctx, tx, &p, w)
	})
}

func exportLines(ctx context.Context, tx pgx.Tx, e *Exported, w ExportWriter) error {
	for after := (lineCursor{}); ; {
		lines, next, err := page(ctx, tx, &e.Period, after, exportPage)
		if err != nil {
			return err
		}
		for i := range lines {
			if e.AsOf == nil {
				lines[i].Net, lines[i].NetEventCount, lines[i].Unreconciled = nil, nil, nil
			}
			if err := w.Line(&lines[i]); err != nil {
				return err
			}
		}
		if next == nil {
			return nil
		}
		after = *next
	}
}

// exportAdjustments passes the adjustments of the snapshot, by their positions.
func exportAdjustments(ctx context.Context, tx pgx.Tx, p *Period, w ExportWriter) error {
	for after := int64(0); ; {
		var list []Adjustment
		args := []any{p.PeriodKey, "", "", "", exportPage, p.TenantID, p.PeriodKey, *p.Snapshot, after}
		err := query.Run(ctx, tx, query.New(readTenantAdjustments, args, query.Into(&list, scanAdjustment)))
		if err != nil {
			return err
		}
		for i := range list {
			if list[i].Snapshot != *p.Snapshot {
				return nil // those of the next snapshot follow
			}
			if err := w.Adjustment(&list[i]); err != nil {
				return err
			}
			after = list[i].Position.Number
		}
		if len(list) < exportPage {
			return nil
		}
	}
}
