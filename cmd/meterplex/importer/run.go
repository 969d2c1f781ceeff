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
	to       map[string]*Recipient // by their value in the file
	shift    time.Duration
	ids      *eventIDs
	sha256   string // of the file's text in the first pass

	mu    sync.Mutex // guards the fields below
	sum   Summary
	shown int
	meter *meter
}

// importBatch is a batch of events with the rows that they came from.
type importBatch struct {
	client.Batch
	to      *Recipient
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
	if err != nil {
		return fmt.Errorf("the import is not complete; run it again: no event counts twice: %w", err)
	}
	return nil
}

// maxWaiting bounds the events of unfinished batches: those of many tenants.
const maxWaiting = 100_000

// produce builds batches from the rows, in order.
func (r *importRun) produce(ctx context.Context, to chan<- *importBatch) error {
	out := outbox{run: r, to: to, batches: map[*Recipient]*importBatch{}}
	sum, err := readRows(ctx, r.job, func(row *usageRow, bad error) error {
		if bad != nil || row.other {
			return nil // printed in the first pass
		}
		for _, a := range row.amounts {
			if err := out.add(ctx, row, a); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if sum != r.sha256 {
		return errors.New("the file changed while it was imported")
	}
	return out.flushAll(ctx)
}

// outbox holds the unfinished batch of each tenant.
type outbox struct {
	run     *importRun
	to      chan<- *importBatch
	batches map[*Recipient]*importBatch
	waiting int // events in batches
	begun   bool
}

func (o *outbox) add(ctx context.Context, row *usageRow, a amount) error {
	to, ok := o.run.to[row.tenant]
	if !ok {
		return errors.New("the file changed while it was imported")
	}
	id, err := o.run.ids.of(row, a, to.id)
	if err != nil {
		return err
	}
	event, err := eventOf(id, a, row, o.run.shift)
	if err != nil {
		return err
	}
	b := o.batches[to]
	if b != nil && b.Full(len(event), o.run.job.Batch) {
		if err := o.flush(ctx, to); err != nil {
			return err
		}
	}
	if o.waiting >= maxWaiting {
		if err := o.flushAll(ctx); err != nil {
			return err
		}
	}
	if b = o.batches[to]; b == nil {
		b = &importBatch{to: to}
		o.batches[to] = b
	}
	b.Add(event)
	b.origins = append(b.origins, origin{row.line, a})
	o.waiting++
	return nil
}

func (o *outbox) flushAll(ctx context.Context) error {
	for to := range o.batches {
		if err := o.flush(ctx, to); err != nil {
			return err
		}
	}
	return nil
}

// flush hands a batch over. The first one is delivered here, before any other is.
func (o *outbox) flush(ctx context.Context, to *Recipient) error {
	b := o.batches[to]
	delete(o.batches, to)
	o.waiting -= len(b.Events)
	if !o.begun {
		o.begun = true
		return o.run.deliver(ctx, b)
	}
	select {
	case o.to <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver sends a batch and counts the verdicts.
func (r *importRun) deliver(ctx context.Context, b *importBatch) error {
	verdicts, err := b.to.Client.Ingest(ctx, b.Events)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range verdicts {
		r.count(&verdicts[i], b.origins[i], b.to)
	}
	r.meter.add(len(verdicts))
	return nil
}

func (r *importRun) count(v *client.Verdict, from origin, to *Recipient) {
	r.sum.count(v, from.amount)
	if v.Good() {
		to.pass(v.Position)
		return
	}
	if r.shown++; r.shown <= maxShown {
		r.importer.Report("line %d, %s: %s: %s: %s", from.line, from.feature, v.Status, output.Printable(v.Code),
			output.Printable(v.Reason))
	} else if r.shown == maxShown+1 {
		r.importer.Report("… more are counted in the summary")
	}
}
