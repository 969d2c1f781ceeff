// Package usage is the projection usage_aggregates: the sums of validated usage by tenant,
// feature, period and subscription. It also answers reads: current figures, figures as of a
// position, and the events behind a figure.
package usage

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
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// V1 is the version of the fold in this file.
const V1 = projections.ProjectionUsage + "/v1"

// Fold returns the amount that the verdict of an event adds, and its key. It is pure, and commutative: sums. The key is of
// the verdict's tenant, and of the feature and the period that the verdict names: the reads of a figure find
// its verdicts by these. The subscription may be another.
type Fold func(e *events.Envelope, v events.Validated) (Key, Delta, error)

// inItsFigure folds a verdict, and refuses a fold that counts it in another figure (errMoved).
func (f Fold) inItsFigure(e *events.Envelope, v events.Validated) (Key, Delta, error) {
	key, delta, err := f(e, v)
	if err == nil && (key.Feature != v.Feature || key.PeriodKey != v.PeriodKey || key.TenantID != e.TenantID) {
		err = fmt.Errorf("%w: %.100q in %.20q of tenant %s", errMoved, key.Feature, key.PeriodKey, key.TenantID)
	}
	if err != nil {
		return Key{}, Delta{}, err
	}
	return key, delta, nil
}

// upsertUsage adds a batch's sums to the table.
//
//go:embed add.sql
var upsertUsage string

// Handler is the handler of usage.validated.
type Handler struct {
	Folds       projections.Versions[Fold]
	NewID       func() uuid.UUID
	TotalsEvery int64 // verdicts between the running totals of a figure; zero means DefaultTotalsEvery
}

// Key is the key of an aggregate.
type Key struct {
	TenantID       uuid.UUID
	Feature        string
	PeriodKey      string
	SubscriptionID uuid.UUID
}

func (k Key) compare(o Key) int {
	return cmp.Or(bytes.Compare(k.TenantID[:], o.TenantID[:]), cmp.Compare(k.Feature, o.Feature),
		cmp.Compare(k.PeriodKey, o.PeriodKey), bytes.Compare(k.SubscriptionID[:], o.SubscriptionID[:]))
}

// Delta is an event's addition to its aggregate.
type Delta struct {
	Amount int64
	Count  int64
	At     time.Time // of the usage
	Grant  int64     // that the usage is charged by; 0: the verdict names none
}

var (
	errPeriodKey = errors.New("the period key is invalid")
	errMoved     = errors.New("this version of the fold counts the verdict in another figure than the verdict names")
)

// FoldV1 is the fold usage_aggregates/v1: it returns a verdict's amount and its key.
func FoldV1(e *events.Envelope, v events.Validated) (Key, Delta, error) {
	if _, _, ok := domain.PeriodBounds(v.PeriodKey); !ok && v.PeriodKey != domain.PeriodLifetime {
		return Key{}, Delta{}, fmt.Errorf("%w: %.20q", errPeriodKey, v.PeriodKey)
	}
	return Key{e.TenantID, v.Feature, v.PeriodKey, v.ValidatedSubscriptionID}, Delta{v.Amount, v.Count, v.Timestamp, v.Grant}, nil
}

// usageSum is a batch's sum for one aggregate.
type usageSum struct {
	partition int16
	amount    big.Int // int64 can overflow within a batch
	count     int64
	applied   int64
	last      time.Time
	byGrant   map[int64]*usageSum // of the verdicts that name a grant
}

func (s *usageSum) add(partition int16, d Delta) {
	s.partition = partition
	s.amount.Add(&s.amount, big.NewInt(d.Amount))
	s.count += d.Count
	s.applied++
	if s.applied == 1 || d.At.After(s.last) {
		s.last = d.At
	}
	if d.Grant == 0 {
		return
	}
	of := s.byGrant[d.Grant]
	if of == nil {
		of = new(usageSum)
		if s.byGrant == nil {
			s.byGrant = map[int64]*usageSum{}
		}
		s.byGrant[d.Grant] = of
	}
	d.Grant = 0
	of.add(partition, d)
}

// usageSums holds a batch's sums for a generation's aggregates.
type usageSums struct {
	fold   Fold
	period string // of the generation's scope
	every  int64  // verdicts between running totals
	byKey  map[Key]*usageSum
}

func (u *Handler) sums(g projections.Generation) (*usageSums, error) {
	fold, err := u.Folds.Of(g.FoldVersion)
	if err != nil {
		return nil, err
	}
	return &usageSums{fold, g.PeriodKey, cmp.Or(u.TotalsEvery, DefaultTotalsEvery), make(map[Key]*usageSum)}, nil
}

// add folds one event. It retains only copies of the event's data.
func (s *usageSums) add(e *events.Envelope) *projections.Failure {
	var key Key
	var delta Delta
	failure := projections.Try(*e, func() error {
		v, err := codec.VerdictOf(e)
		if err == nil {
			key, delta, err = s.fold.inItsFigure(e, v)
		}
		return err
	})
	if failure != nil || s.period != "" && key.PeriodKey != s.period {
		return failure
	}
	addTo(s.byKey, e.Position.Partition, key, delta)
	return nil
}

// Apply adds the batch to the aggregates, in one statement.
func (u *Handler) Apply(ctx context.Context, tx pgx.Tx, in projections.Generation, batch []events.Envelope) (projections.Result, error) {
	var result projections.Result
	sums, err := u.sums(in)
	if err != nil {
		return projections.Result{}, err
	}
	var folded [events.Partitions]int64
	for i := range batch {
		e := &batch[i]
		folded[e.Position.Partition] = e.Position.Number
		if failure := sums.add(e); failure != nil {
			result.Failed = append(result.Failed, *failure)
		} else if e.Subject == events.Reaggregated {
			result.FollowUps = append(result.FollowUps, u.resolved(e))
		}
	}
	return result, sums.upsert(ctx, tx, in.Number, func(partition int16) int64 { return folded[partition] })
}

// resolved closes the dead letter that a reaggregated event comes from.
func (u *Handler) resolved(e *events.Envelope) events.Pending {
	deadLetter, _ := projections.RetryOf(e)
	return projections.Closing(e, u.NewID(), events.Closed{DeadLetterID: deadLetter, Status: events.StatusResolved}, events.GroupAggregator)
}

// upsert adds the sums to the generation's rows, and writes the running totals that are due.
// folded returns the position up to which a partition's verdicts are folded then.
func (s *usageSums) upsert(ctx context.Context, tx pgx.Tx, generation int, folded func(partition int16) int64) error {
	if len(s.byKey) == 0 {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(s.byKey), Key.compare)
	var c usageColumns
	for _, key := range keys {
		c.add(key, s.byKey[key])
	}
	rows, err := tx.Query(ctx, upsertUsage, generation, c.partitions, c.tenants, c.features, c.periods, c.subscriptions,
		c.amounts, c.counts, c.applied, c.starts, c.ends, c.lasts)
	if err != nil {
		return fmt.Errorf("add to usage_aggregates: %w", err)
	}
	applied, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("add to usage_aggregates: %w", err)
	}
	if err := upsertByGrant(ctx, tx, generation, keys, s.byKey); err != nil {
		return err
	}
	var due figures
	for i, n := range applied {
		if n/s.every > (n-c.applied[i])/s.every {
			due.add(keys[i], folded(c.partitions[i]))
		}
	}
	return due.writeTotals(ctx, tx, generation)
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

func (c *usageColumns) add(key Key, s *usageSum) {
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

// Statements returns the SQL of the fold that runs for each batch, in sessions that keep their
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"usage": upsertUsage, "usage by grant": addByGrant, "running totals": writeRunningTotals}
}
