package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// maxRefusedGroups is the number of groups that a tenant has, beside those of other features.
	maxRefusedGroups = 1000
	otherFeatures    = "*"
)

// refusedUsage recounts refused usage by its groups, in the order of the log.
type refusedUsage struct {
	upTo   int64 // checkpoint of the projection
	counts map[refusedGroup]int64
	groups map[uuid.UUID]int // of each tenant, without those of other features
	failed bool              // the projection could not fold an event
}

type refusedGroup struct {
	tenant        uuid.UUID
	code, feature string
}

func newRefusedUsage(upTo int64) refusedUsage {
	return refusedUsage{upTo: upTo, counts: map[refusedGroup]int64{}, groups: map[uuid.UUID]int{}}
}

func (x *pass) addRefused(r *row, _ *content, _ error) {
	f := &x.refused
	f.failed = f.failed || r.subject == aggregationFailed && x.services[r.origin] == refusalsOf
	if r.subject != refusalsSeen || r.position > f.upTo || x.withheld[r.position] {
		return
	}
	var seen struct {
		Groups []struct {
			Code, Feature string
			Count         int64
		}
	}
	if err := json.Unmarshal(r.body, &seen); err != nil {
		x.usageRefusals.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	for _, g := range seen.Groups {
		key := refusedGroup{r.tenant, g.Code, g.Feature}
		if _, known := f.counts[key]; !known && g.Feature != otherFeatures {
			if f.groups[r.tenant] >= maxRefusedGroups {
				key.feature = otherFeatures
			} else {
				f.groups[r.tenant]++
			}
		}
		f.counts[key] += g.Count
	}
}

const refusalsSQL = `SELECT tenant_id, code, feature, count FROM usage_refusals WHERE generation = $1 AND partition = $2`

func (x *pass) compareRefused(ctx context.Context, tx pgx.Tx) error {
	if x.refused.failed {
		x.usageRefusals.incomplete(errors.New("usage_refusals could not apply an event: it is not compared"))
		return nil
	}
	all, err := x.candidates(ctx, tx, x.usageRefusals, "usage_refusals", refusalsOf)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		found := map[refusedGroup]bool{}
		var key refusedGroup
		var count int64
		err := each(ctx, tx, refusalsSQL, []any{g.number, x.p}, []any{&key.tenant, &key.code, &key.feature, &count}, func() error {
			x.usageRefusals.n++
			found[key] = true
			want := x.refused.counts[key]
			x.usageRefusals.expect(count == want || g.replacedBy(figure{tenant: key.tenant}) != 0,
				"generation %d counts %d events of %s refused as %s for %q, the log %d", g.number, count, key.tenant, key.code, key.feature,
				want)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read usage_refusals: %w", err)
		}
		for key, n := range x.refused.counts {
			of := figure{tenant: key.tenant}
			x.usageRefusals.expect(found[key] || !g.has(of) || g.replacedBy(of) != 0,
				"generation %d has no group of %s refused as %s for %q; the log has %d events", g.number, key.tenant, key.code, key.feature,
				n)
		}
	}
	return nil
}
