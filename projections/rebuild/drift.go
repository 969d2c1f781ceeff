package rebuild

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// maxDrift is how many rows are kept of what a verify found: its generation is gone
// afterwards, and nobody reads more than a thousand by eye.
const maxDrift = 1000

// Drift counts the keys whose live rows are not as a verify's generation, which is
// folded from the log, says; with the first of them.
func (r *Reads) Drift(ctx context.Context, rebuild domain.Rebuild) (differs int64, sample []DiffRow, err error) {
	sample = []DiffRow{}
	err = r.EachDiff(ctx, DiffQuery{RebuildID: rebuild.ID}, func(row DiffRow) error {
		if differs++; differs <= maxDrift {
			sample = append(sample, row)
		}
		return nil
	})
	return differs, sample, err
}

const saveReport = `UPDATE projection_rebuilds SET report = $2 WHERE id = $1`

// SaveReport keeps what a verify found. It is written before the verify is ended,
// and may be written again.
func (r *Reads) SaveReport(ctx context.Context, rebuild uuid.UUID, sample []DiffRow) error {
	body, err := json.Marshal(sample)
	if err != nil {
		return fmt.Errorf("write what a verify found: %w", err)
	}
	if _, err := r.Pool.Exec(ctx, saveReport, rebuild, body); err != nil {
		return fmt.Errorf("keep what a verify found: %w", err)
	}
	return nil
}
