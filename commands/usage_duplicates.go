package commands

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// DuplicatesSeen counts retries of known events and writes at most one event for
// each tenant and second, so that a retry storm causes few writes. The counts are
// for monitoring; if the process dies, those of the current second are lost.
type DuplicatesSeen struct {
	Store  Store
	Now    Clock
	NewID  func() uuid.UUID
	Logger *slog.Logger

	mu     sync.Mutex
	counts map[uuid.UUID]int64
}

// Seen adds to a tenant's count. It never blocks on the store.
func (d *DuplicatesSeen) Seen(tenant uuid.UUID, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts == nil {
		d.counts = map[uuid.UUID]int64{}
	}
	d.counts[tenant] += int64(n)
}

// Run writes the counts each second until ctx ends, and the remaining counts then.
func (d *DuplicatesSeen) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			d.flush(last)
			return nil
		}
	}
}

func (d *DuplicatesSeen) flush(ctx context.Context) {
	d.mu.Lock()
	counts := d.counts
	d.counts = nil
	d.mu.Unlock()
	now := d.Now().UTC().Truncate(time.Microsecond)
	req := Request{By: Caller{Actor: events.Actor{Type: "system", ID: "ingest"}}}
	for tenant, n := range counts {
		err := d.Store.Change(ctx, tenant, func(tx Tx) error {
			_, err := appendEvent(tx, &req, d.NewID(), now, tenant, events.DuplicatesSeen, events.Duplicates{Count: n, From: now.Truncate(time.Second)})
			return err
		})
		if err != nil {
			d.Logger.Warn("duplicates were not recorded", "count", n, "error", err)
		}
	}
}
