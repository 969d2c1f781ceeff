package commands

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Expiry ends reservations whose time is over. Any number of instances may run it: a reservation ends once, under the lock of the
// head of its tenant's partition.
type Expiry struct {
	Quotas *Quotas
	Logger *slog.Logger
	Every  time.Duration // interval of looking for them; 0: 250 ms
}

const (
	// expiryEvery keeps an expiry less than a second late.
	expiryEvery = 250 * time.Millisecond
	// expiryBatch bounds the reservations of one look, and those of a tenant that end in one transaction.
	expiryBatch = 1000
	// expiryTenants bounds the tenants whose reservations end at the same time.
	expiryTenants = 32
)

// Run ends reservations until ctx ends. After a failure it tries again at the next look.
func (x *Expiry) Run(ctx context.Context) error {
	every := x.Every
	if every == 0 {
		every = expiryEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := x.look(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			x.Logger.WarnContext(ctx, "cannot end reservations whose time is over; will retry", "error", err)
		}
		failing = err != nil
	}
}

// look ends all reservations that are due now.
func (x *Expiry) look(ctx context.Context) error {
	for {
		due, err := x.Quotas.Reservations.Due(ctx, x.Quotas.Now(), expiryBatch)
		if err != nil || len(due) == 0 {
			return err
		}
		ended, err := x.end(ctx, due)
		if err != nil || len(due) < expiryBatch || ended == 0 {
			return err
		}
	}
}

// end ends reservations, those of each tenant in one transaction. The error of one tenant stops no other.
func (x *Expiry) end(ctx context.Context, due []DueReservation) (ended int, err error) {
	var tenants []uuid.UUID
	of := map[uuid.UUID][]DueReservation{}
	for _, d := range due {
		if of[d.TenantID] == nil {
			tenants = append(tenants, d.TenantID)
		}
		of[d.TenantID] = append(of[d.TenantID], d)
	}
	var all sync.WaitGroup
	places := make(chan struct{}, expiryTenants)
	counts, errs := make([]int, len(tenants)), make([]error, len(tenants))
	for i, tenant := range tenants {
		places <- struct{}{}
		all.Go(func() {
			counts[i], errs[i] = x.Quotas.Expire(ctx, of[tenant])
			<-places
		})
	}
	all.Wait()
	for _, n := range counts {
		ended += n
	}
	return ended, errors.Join(errs...)
}
