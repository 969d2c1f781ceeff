package relay

import (
	"context"

	"github.com/meterplex/meterplex/events"
)

// Publisher publishes to the pipe.
type Publisher interface {
	// PublishRecords stores the records in order per topic and partition, and returns them with their
	// offsets (-1 if the pipe has none). A *watermill.PublishError names the records that are not stored,
	// and those that are permanently refused. After any other error no record is known to be stored.
	PublishRecords(ctx context.Context, records []events.Record) ([]events.Record, error)
}
