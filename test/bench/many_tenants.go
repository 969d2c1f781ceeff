package main

import (
	"context"
	"errors"
	"fmt"
)

// whaleShare is the share of the requests that one tenant sends.
const whaleShare = 0.9

// manyTenants is B4's load from very many tenants, and from very unequal ones.
func (r *run) manyTenants(ctx context.Context) error {
	many := tenantSpec{feature: feature, quota: true, tenants: r.times.tenants} // each verdict changes an account
	err := r.withService(ctx, 1, many, func(s *subject) error {
		f := figureMany(r.times.tenants)
		if err := r.stream(ctx, s, &f); err != nil {
			return err
		}
		r.addFigure(f)
		return nil
	})
	if err != nil {
		return err
	}
	few := tenantSpec{feature: feature, tenants: tenantCount, spread: true}
	return r.withService(ctx, 1, few, func(s *subject) error {
		s.whale = whaleShare
		f := figureTenants("B4/whale", fmt.Sprintf("B4's load, %.0f %% of it from one of %d tenants (all roles)", whaleShare*100,
			tenantCount))
		if err := r.stream(ctx, s, &f); err != nil {
			return err
		}
		r.addFigure(f)
		return nil
	})
}

// instances measures B1, B2 and B4 with 1, 2 and 4 processes that share a database and a broker.
func (r *run) instances(ctx context.Context) error {
	for _, n := range []int{1, 2, 4} {
		err := r.withService(ctx, n, tenantSpec{feature: feature, tenants: tenantCount, spread: true}, func(s *subject) error {
			f := figureInstances("B1", n, "batches of 1,000")
			if err := r.closed(ctx, s, &f, 2*batchClients, batchSize); err != nil {
				return err
			}
			r.addFigure(f)
			f = figureInstances("B2", n, "single events, 64 clients")
			if err := r.closed(ctx, s, &f, singleClients, 1); err != nil {
				return err
			}
			r.addFigure(f)
			f = figureInstances("B4", n, "end to end")
			if err := r.stream(ctx, s, &f); err != nil {
				return err
			}
			r.addFigure(f)
			return nil
		})
		if err != nil {
			return errors.Join(fmt.Errorf("with %d instances", n), err)
		}
	}
	return nil
}
