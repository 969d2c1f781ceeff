package relay

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/relay/cursors"
)

// leases shares the partitions among the live instances. All times come from the database. An instance
// uses its own clock only to measure the age of a renewal request.
type leases struct {
	*Relay
	held *holdings
	kick loop.Hint // a free lease was seen
	// handed notifies the subscriber of new leases.
	handed loop.Hint
	share  int
}

func newLeases(r *Relay) *leases {
	return &leases{
		Relay: r, held: &holdings{fresh: r.LeaseTTL / 2},
		kick: loop.NewHint(), handed: loop.NewHint(),
	}
}

// minTick bounds the rate of rounds started by kicks.
const minTick = 50 * time.Millisecond

// run renews and balances the leases until ctx ends. It does not cancel a round: the server could write the
// heartbeat after releaseAll has deleted it.
func (l *leases) run(ctx context.Context) {
	every, log := l.LeaseTTL/5, retries.New(l.Logger, slog.LevelWarn, "cannot renew the relay's leases; will retry", "")
	timer := time.NewTimer(0)
	defer timer.Stop()
	var earliest time.Time // of a round that a kick starts
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.kick:
			if !loop.Sleep(ctx, time.Until(earliest)) {
				return
			}
		}
		log.Report(ctx, l.round(context.WithoutCancel(ctx)))
		l.Observe.Leases(l.held.unexpired(time.Now(), l.LeaseTTL))
		timer.Reset(l.Ticks.Until(every))
		earliest = time.Now().Add(minTick)
	}
}

// round renews the leases, releases those above the fair share, and acquires missing ones.
func (l *leases) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.LeaseTTL/2)
	defer cancel()
	if err := l.renew(ctx); err != nil {
		return err
	}
	live, err := l.heartbeat(ctx)
	if err != nil {
		return err
	}
	l.share = (events.Partitions + live - 1) / live
	if err := l.release(ctx, l.held.shed(l.share)); err != nil {
		return err
	}
	if want := l.share - len(l.held.list()); want > 0 {
		if err := l.acquire(ctx, want); err != nil {
			return err
		}
	}
	return nil
}

// heartbeatSQL also deletes instances without a heartbeat for an hour.
const heartbeatSQL = `WITH gone AS (
 DELETE FROM relay_instances WHERE seen_at < now() - interval '1 hour' AND instance <> $1
), me AS (
 INSERT INTO relay_instances (instance, seen_at) VALUES ($1, now()) ON CONFLICT (instance) DO UPDATE SET seen_at = now()
) SELECT count(*) + 1 FROM relay_instances WHERE instance <> $1 AND seen_at > now() - $2::interval`

func (l *leases) heartbeat(ctx context.Context) (live int, err error) {
	if err := l.Pool.QueryRow(ctx, heartbeatSQL, l.Instance, l.LeaseTTL).Scan(&live); err != nil {
		return 0, fmt.Errorf("writing the relay's heartbeat: %w", err)
	}
	return live, nil
}

// renew extends the leases and drops those that the database does not confirm. After a failover that lost the
// newest events, a cursor in the database may be behind the one in memory.
func (l *leases) renew(ctx context.Context) error {
	requested, at := l.held.list(), time.Now()
	if len(requested) == 0 {
		return nil
	}
	leased, err := cursors.Renew(ctx, l.Pool, l.Instance, leasesOf(requested), l.LeaseTTL)
	if err != nil {
		return err
	}
	var confirmed []span
	for _, p := range leased {
		confirmed = append(confirmed, span{partition: p.Partition, fence: p.Fence, after: p.Position})
	}
	if lost := l.held.renewed(at, requested, confirmed); lost > 0 {
		l.Logger.WarnContext(ctx, "leases lost: another relay acquired them, or the database server is in another life", "partitions", lost)
	}
	return nil
}

func leasesOf(spans []span) (all []cursors.Lease) {
	for _, s := range spans {
		all = append(all, cursors.Lease{Partition: s.partition, Fence: s.fence})
	}
	return all
}

func (l *leases) acquire(ctx context.Context, want int) error {
	at := time.Now()
	leased, err := cursors.Acquire(ctx, l.Pool, l.Instance, want, l.LeaseTTL)
	if err != nil {
		return err
	}
	var acquired []*holding
	for _, p := range leased {
		acquired = append(acquired, &holding{partition: p.Partition, fence: p.Fence, cursor: p.Position, epoch: p.Epoch, renewed: at})
	}
	if len(acquired) > 0 {
		l.held.add(acquired)
		l.handed.Notify()
	}
	return nil
}

func (l *leases) release(ctx context.Context, spans []span) error {
	if len(spans) == 0 {
		return nil
	}
	return cursors.Release(ctx, l.Pool, l.Instance, leasesOf(spans))
}

// releaseAll releases all leases and deletes this instance's heartbeat, so that other instances need not
// wait for the leases to expire.
func (l *leases) releaseAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.LeaseTTL)
	defer cancel()
	if _, err := l.Pool.Exec(ctx, `DELETE FROM relay_instances WHERE instance = $1`, l.Instance); err != nil {
		return fmt.Errorf("deleting the relay's heartbeat: %w", err)
	}
	held := l.held.list()
	for _, s := range held {
		l.held.forget(s.partition, s.fence)
	}
	return l.release(ctx, held)
}
