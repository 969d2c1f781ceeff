package metering

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/loop"
)

// Expiry ends reservations whose time is over. Any number of instances may run it: a reservation ends once, under the lock of the
// head of its tenant's partition.
type Expiry struct {
	Quotas *Quotas
	Logger *slog.Logger
	Ticks  loop.Ticks    // the moments of looks while no reservation is due
	Every  time.Duration // the shortest time between two looks, a third of the longest; 0: 250 ms
}

const (
	// expiryEvery keeps an expiry less than a second late: a reservation lasts for a second at least, so that one which is held after a
	// look is not over before the next.
	expiryEvery = 250 * time.Millisecond
	// expiryBatch bounds the reservations of one look, and those of a tenant that end in one transaction.
	expiryBatch = 1000
	// expiryTenants bounds the tenants whose reservations end at the same time.
	expiryTenants = 32
)

// Run ends reservations until ctx ends. After a failure it tries again at the next look.
func (x *Expiry) Run(ctx context.Context) error {
	every := cmp.Or(x.Every, expiryEvery)
	looks := loop.Loop{Every: every, Logger: x.Logger, Failed: "cannot end reservations whose time is over; will retry"}
	return looks.RunPaced(ctx, func(ctx context.Context) (time.Duration, error) { return x.look(ctx, every) })
}

// look ends the reservations that are due, and returns the time until the next look. If no reservation is due it costs one read.
func (x *Expiry) look(ctx context.Context, every time.Duration) (wait time.Duration, err error) {
	next, held, err := x.Quotas.Reservations.NextDue(ctx)
	switch now := x.Quotas.Now(); {
	case err != nil:
		return every, err
	case !held:
		return x.Ticks.Until(3 * every), nil
	case next.After(now):
		return min(next.Sub(now), x.Ticks.Until(3*every)), nil
	}
	return every, x.endDue(ctx)
}

// endDue ends all reservations that are due now, in rounds. Tenants whose reservations cannot be ended wait for the next poll.
func (x *Expiry) endDue(ctx context.Context) (failed error) {
	var stuck []uuid.UUID
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = x.round(ctx, &stuck); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// round ends one batch of each tenant at most, so that no tenant's reservations wait for all those of another one. It adds the tenants
// without any reservation that could be ended to stuck, and returns whether more reservations may be due.
func (x *Expiry) round(ctx context.Context, stuck *[]uuid.UUID) (more bool, failed error) {
	served := slices.Clone(*stuck)
	for {
		due, err := x.Quotas.Reservations.Due(ctx, x.Quotas.Now(), served, expiryBatch)
		if err != nil {
			return false, errors.Join(failed, err)
		}
		tenants, left, err := x.end(ctx, due)
		served, *stuck, failed = append(served, tenants...), append(*stuck, left...), errors.Join(failed, err)
		if len(due) < expiryBatch || ctx.Err() != nil {
			return more, failed
		}
		more = true
	}
}

// end ends reservations, those of each tenant in one transaction, and returns the tenants, and those without any ended reservation.
func (x *Expiry) end(ctx context.Context, due []DueReservation) (tenants, stuck []uuid.UUID, err error) {
	of := map[uuid.UUID][]DueReservation{}
	for _, d := range due {
		if of[d.TenantID] == nil {
			tenants = append(tenants, d.TenantID)
		}
		of[d.TenantID] = append(of[d.TenantID], d)
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, expiryTenants)
	counts, errs := make([]int, len(tenants)), make([]error, len(tenants))
	for i, tenant := range tenants {
		slots <- struct{}{}
		all.Go(func() {
			counts[i], errs[i] = x.Quotas.Expire(ctx, of[tenant])
			<-slots
		})
	}
	all.Wait()
	for i, tenant := range tenants {
		if counts[i] == 0 {
			stuck = append(stuck, tenant)
		}
	}
	return tenants, stuck, errors.Join(errs...)
}
