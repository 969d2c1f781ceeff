package projections

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// UsageAggregatesV1 is the version of the fold in this file. What a generation
// was bound to when it was made is all that it may ever be fed with.
const UsageAggregatesV1 = "usage_aggregates/v1"

// upsertUsage adds a batch's sums to the table.
//
//go:embed usage_aggregates.sql
var upsertUsage string

// UsageAggregates is the handler of usage.validated.
type UsageAggregates struct {
	Generation int
	NewID      func() uuid.UUID
}

// UsageKey is the key of an aggregate.
type UsageKey struct {
	TenantID       uuid.UUID
	Feature        string
	PeriodKey      string
	SubscriptionID uuid.UUID
}

func (k UsageKey) compare(o UsageKey) int {
	return cmp.Or(bytes.Compare(k.TenantID[:], o.TenantID[:]), cmp.Compare(k.Feature, o.Feature),
		cmp.Compare(k.PeriodKey, o.PeriodKey), bytes.Compare(k.SubscriptionID[:], o.SubscriptionID[:]))
}

// UsageDelta is what an event adds to its aggregate.
type UsageDelta struct {
	Amount int64
	Count  int64
	At     time.Time // of the usage
}

var (
	errNotForAggregator = errors.New("the aggregator takes validated usage, nothing else")
	errPeriodKey        = errors.New("the period key is none")
)

// FoldUsage is the fold usage_aggregates/v1: what a verdict adds, and to what.
func FoldUsage(e *events.Envelope) (UsageKey, UsageDelta, error) {
	if e.Subject != events.UsageValidated && e.Subject != events.Reaggregated {
		return UsageKey{}, UsageDelta{}, errNotForAggregator
	}
	v, err := events.VerdictOf(e)
	if err != nil {
		return UsageKey{}, UsageDelta{}, err
	}
	if _, _, ok := domain.PeriodBounds(v.PeriodKey); !ok && v.PeriodKey != domain.PeriodLifetime {
		return UsageKey{}, UsageDelta{}, fmt.Errorf("%w: %.20q", errPeriodKey, v.PeriodKey)
	}
	return UsageKey{e.TenantID, v.Feature, v.PeriodKey, v.ValidatedSubscriptionID}, UsageDelta{v.Amount, v.Count, v.Timestamp}, nil
}

// usageSum is what a batch adds to an aggregate.
type usageSum struct {
	partition int16
	amount    big.Int // int64 can overflow within a batch
	count     int64
	applied   int64
	last      time.Time
}

func (s *usageSum) add(partition int16, d UsageDelta) {
	s.partition = partition
	s.amount.Add(&s.amount, big.NewInt(d.Amount))
	s.count += d.Count
	s.applied++
	if s.applied == 1 || d.At.After(s.last) {
		s.last = d.At
	}
}

// Apply adds the batch to the aggregates, in one statement.
func (u *UsageAggregates) Apply(ctx context.Context, tx pgx.Tx, batch []events.Envelope) (Result, error) {
	var result Result
	sums := make(map[UsageKey]*usageSum)
	for i := range batch {
		e := &batch[i]
		var key UsageKey
		var delta UsageDelta
		failure := Try(*e, func() (err error) {
			key, delta, err = FoldUsage(e)
			return err
		})
		if failure != nil {
			result.Failed = append(result.Failed, *failure)
			continue
		}
		sum := sums[key]
		if sum == nil {
			sum = new(usageSum)
			sums[key] = sum
		}
		sum.add(e.Position.Partition, delta)
		if e.Subject == events.Reaggregated {
			result.FollowUps = append(result.FollowUps, u.resolved(e))
		}
	}
	return result, u.upsert(ctx, tx, sums)
}

// resolved closes the dead letter that a reaggregated event comes from.
func (u *UsageAggregates) resolved(e *events.Envelope) events.Pending {
	deadLetter, _ := retryOf(e)
	return closing(e, u.NewID(), events.Closed{DeadLetterID: deadLetter, Status: events.StatusResolved}, events.GroupAggregator)
}

func (u *UsageAggregates) upsert(ctx context.Context, tx pgx.Tx, sums map[UsageKey]*usageSum) error {
	if len(sums) == 0 {
		return nil
	}
	var c usageColumns
	for _, key := range slices.SortedFunc(maps.Keys(sums), UsageKey.compare) {
		c.add(key, sums[key])
	}
	_, err := tx.Exec(ctx, upsertUsage, u.Generation, c.partitions, c.tenants, c.features, c.periods, c.subscriptions,
		c.amounts, c.counts, c.applied, c.starts, c.ends, c.lasts)
	if err != nil {
		return fmt.Errorf("add to usage_aggregates: %w", err)
	}
	return nil
}

// usageColumns are the rows of the upsert, column by column.
type usageColumns struct {
	partitions                 []int16
	tenants, subscriptions     []uuid.UUID
	features, periods, amounts []string
	counts, applied            []int64
	starts, ends               []*time.Time // nil for lifetime
	lasts                      []time.Time
}

func (c *usageColumns) add(key UsageKey, s *usageSum) {
	c.partitions = append(c.partitions, s.partition)
	c.tenants, c.subscriptions = append(c.tenants, key.TenantID), append(c.subscriptions, key.SubscriptionID)
	c.features, c.periods = append(c.features, key.Feature), append(c.periods, key.PeriodKey)
	c.amounts = append(c.amounts, s.amount.String())
	c.counts, c.applied = append(c.counts, s.count), append(c.applied, s.applied)
	c.lasts = append(c.lasts, s.last)
	start, end, ok := domain.PeriodBounds(key.PeriodKey)
	if !ok {
		c.starts, c.ends = append(c.starts, nil), append(c.ends, nil)
		return
	}
	c.starts, c.ends = append(c.starts, &start), append(c.ends, &end)
}
