package importer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// importRun is the second pass over the file, which sends its events.
type importRun struct {
	importer *Importer
	job      Job
	shift    time.Duration

	mu    sync.Mutex // guards the fields below
	state *importState
	saved time.Time
	sum   Summary
	shown int
	meter *meter
}

// importBatch is a batch of events with the rows that they came from.
type importBatch struct {
	client.Batch
	origins []origin
}

type origin struct {
	line int
	amount
}

// send reads the file again and sends its events. The first batch is sent alone:
// if the service knows any event of the import, it knows the first one, and a
// later run can derive the anchor from it.
func (r *importRun) send(ctx context.Context) error {
	start := r.importer.Now()
	g, working := errgroup.WithContext(ctx)
	batches := make(chan *importBatch)
	g.Go(func() error {
		defer close(batches)
		return r.produce(working, batches)
	})
	for range r.job.Concurrency {
		g.Go(func() error {
			for b := range batches {
				if err := r.deliver(working, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	r.meter.finish()
	r.sum.Seconds = r.importer.Now().Sub(start).Seconds()
	if err == nil {
		now := r.importer.Now().UTC()
		r.state.FinishedAt = &now
	}
	r.state.EventsKnown = r.sum.Accepted + r.sum.Duplicates
	err = errors.Join(err, saveState(r.importer.statePath(r.job.Name), r.state))
	if err != nil {
		return fmt.Errorf("the import is not complete; run it again: no event counts twice: %w", err)
	}
	return nil
}

// produce builds batches from the rows, in order.
func (r *importRun) produce(ctx context.Context, to chan<- *importBatch) error {
	b, first := &importBatch{}, true
	flush := func() error {
		full := b
		b = &importBatch{}
		if first {
			first = false
			return r.deliver(ctx, full)
		}
		select {
		case to <- full:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	sum, err := readRows(ctx, r.job, func(row *usageRow, bad error) error {
		if bad != nil {
			return nil // printed in the first pass
		}
		for _, a := range row.amounts {
			event, err := eventOf(r.job.Name, a, row, r.shift)
			if err != nil {
				return err
			}
			if b.Full(len(event), r.job.Batch) {
				if err := flush(); err != nil {
					return err
				}
			}
			b.Add(event)
			b.origins = append(b.origins, origin{row.line, a})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if sum != r.state.SHA256 {
		return errors.New("the file changed while it was imported")
	}
	if len(b.Events) == 0 {
		return nil
	}
	return flush()
}

// deliver sends a batch and counts the verdicts.
func (r *importRun) deliver(ctx context.Context, b *importBatch) error {
	verdicts, err := r.importer.Client.Ingest(ctx, b.Events)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range verdicts {
		r.count(&verdicts[i], b.origins[i])
	}
	r.meter.add(len(verdicts))
	if now := r.importer.Now(); now.Sub(r.saved) >= time.Second {
		r.saved = now
		r.state.EventsKnown = r.sum.Accepted + r.sum.Duplicates
		return saveState(r.importer.statePath(r.job.Name), r.state)
	}
	return nil
}

func (r *importRun) count(v *client.Verdict, from origin) {
	r.sum.count(v, from.amount)
	if v.Good() {
		return
	}
	if r.shown++; r.shown <= maxShown {
		r.importer.Report("line %d, %s: %s: %s: %s", from.line, from.feature, v.Status, output.Printable(v.Code), output.Printable(v.Reason))
	} else if r.shown == maxShown+1 {
		r.importer.Report("… more are counted in the summary")
	}
}
