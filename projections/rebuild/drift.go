package rebuild

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// maxDrift is how many differing rows of a verify are kept: its generation is dropped
// afterwards, and people do not read more than a thousand.
const maxDrift = 1000

// Drift counts the keys whose live rows differ from a verify's generation, which is
// folded from the log, and returns the first of them.
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

// saveReport leaves out rows of tenants whose personal data is erased: their rows of the series may differ meanwhile, and a verify may have
// read old ones.
const saveReport = `UPDATE projection_rebuilds SET report = (SELECT coalesce(json_agg(x.row::json ORDER BY x.n), '[]')
 FROM unnest($2::text[], $3::uuid[]) WITH ORDINALITY AS x (row, tenant, n) WHERE NOT EXISTS (SELECT FROM erasures e
 WHERE e.tenant_id = x.tenant)) WHERE id = $1`

// SaveReport stores the result of a verify. It is written before the verify ends, and may
// be written again.
func (r *Reads) SaveReport(ctx context.Context, rebuild uuid.UUID, sample []DiffRow) error {
	rows, tenants := make([]string, len(sample)), make([]uuid.UUID, len(sample))
	for i := range sample {
		body, err := json.Marshal(sample[i])
		if err != nil {
			return fmt.Errorf("encode the findings of a verify: %w", err)
		}
		rows[i], tenants[i] = string(body), sample[i].TenantID
	}
	if _, err := r.Pool.Exec(ctx, saveReport, rebuild, rows, tenants); err != nil {
		return fmt.Errorf("store the findings of a verify: %w", err)
	}
	return nil
}
