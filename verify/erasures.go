package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// erasures are the tenants whose personal data is erased, each with whether that goes on. Their events differ from records that were published before, and from
// the manifest of their offboarding, but in no figure.
type erasures map[uuid.UUID]bool

const erasuresSQL = `SELECT tenant_id, state = 'RUNNING' FROM erasures`

func readErasures(ctx context.Context, tx pgx.Tx, p int16) (erasures, error) {
	all := erasures{}
	var tenant uuid.UUID
	var running bool
	err := each(ctx, tx, erasuresSQL, nil, []any{&tenant, &running}, func() error {
		if partitionOf(tenant) == p {
			all[tenant] = running
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the erasures: %w", err)
	}
	return all, nil
}

var errErasing = errors.New("personal data is being erased: repeat the check after it (meterplex tenants erasures)")

// unfinished reports whether an erasure runs in the partition. Groups and conflicts are then changed in the log, and not yet beside it.
func (x *pass) unfinished() bool {
	for _, running := range x.erased {
		if running {
			return true
		}
	}
	return false
}
