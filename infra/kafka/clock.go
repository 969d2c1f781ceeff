package kafka

import (
	"context"
	"fmt"
	"time"
)

// NewestRecord returns the latest time of a record on the registry's topics; zero if they have no records.
func (a *Admin) NewestRecord(ctx context.Context) (latest time.Time, err error) {
	offsets, err := a.admin.ListMaxTimestampOffsets(ctx, a.names()...)
	if err != nil {
		return latest, fmt.Errorf("read the times of the newest records: %w", permission(err, a.topics("Describe")))
	}
	for _, partitions := range offsets {
		for _, p := range partitions {
			if at := time.UnixMilli(p.Timestamp); p.Err == nil && p.Timestamp >= 0 && at.After(latest) {
				latest = at
			}
		}
	}
	return latest, nil
}
