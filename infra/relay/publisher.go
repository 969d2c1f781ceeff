package relay

import (
	"context"

	"github.com/meterplex/meterplex/events"
)

// Publisher is the pipe.
type Publisher interface {
	// PublishRecords stores the records, each topic's and partition's in their
	// order, and returns them with their offsets (-1 where the pipe has none). A
	// *watermill.PublishError names the records that are not stored, and which of
	// them alone can never be; any other error means that none is known to be.
	PublishRecords(ctx context.Context, records []events.Record) ([]events.Record, error)
}
