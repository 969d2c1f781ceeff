package projections

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// PersonalData names a read model whose rows hold personal data of tenants, and erases it.
type PersonalData struct {
	Name string
	// Consumer folds the rows from events of Topic, 0 for the log; "": no consumer writes them.
	Consumer string
	Topic    events.Topic
	// Erase erases rows of a tenant in all generations, after the cursor that an earlier call returned. It returns "" after the last row.
	// The rows are then those that a fold of the erased log makes.
	Erase func(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, after string) (next string, err error)
}
