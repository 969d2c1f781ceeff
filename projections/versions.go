package projections

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const readUnheld = `
SELECT g.generation, g.fold_version FROM projection_generations g
WHERE g.projection = $1 AND g.dropped_at IS NULL AND g.broken IS NULL AND g.fold_version <> ALL ($2::text[])
ORDER BY g.generation LIMIT 1`

// CheckVersions returns an error if this binary lacks the fold version of a
// generation: it would have to skip events or fold them by another version.
func CheckVersions(ctx context.Context, q Queryer, all []Projection) error {
	for i := range all {
		c := &all[i].Consumer
		var number int
		var version string
		switch err := q.QueryRow(ctx, readUnheld, c.Projection, c.Versions).Scan(&number, &version); {
		case err == nil:
			return fmt.Errorf("generation %d of %s is bound to %q, which this binary does not hold (it holds %q); run the release that "+
				"made it, or abandon its rebuild there first", number, c.Projection, version, c.Versions)
		case !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("read generations: %w", err)
		}
	}
	return nil
}

// Queryer is a pool, a connection or a transaction.
type Queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
