package simulation

import (
	"log/slog"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/validate"
)

// inline is a validator in the process of an API. All partitions are open to it, while the validators of other processes
// work on them, too: that is harder than in the service, where processes leave the partitions of others.
type inline struct {
	*consume.Inline
	s *sim
}

// inlineOf is the inline validator of every second process that ingests.
func (s *sim) inlineOf(p *proc, handed consume.Handovers) eventlog.Inline {
	if !strings.HasSuffix(p.name, "1") {
		return nil
	}
	to := handed[events.TopicUsageRaw]
	if to == nil {
		to = consume.NewHandover()
	}
	return inline{consume.NewInline(validate.Consumer(p.newID, new(validate.Histories)), to, nil, nil, slog.New(slog.DiscardHandler)), s}
}

func (inline) Open(partitions []int16) []int16 { return partitions }

func (in inline) Folded(stretches []events.InlineStretch, batch []events.Envelope, followUps int, took time.Duration) {
	in.s.count("validated inline")
	if len(stretches) > 0 && batch[0].Position.Number <= stretches[0].After {
		in.s.fail("an event behind the checkpoint of partition %d was folded again", stretches[0].Partition)
	}
	in.Inline.Folded(stretches, batch, followUps, took)
}

// freeCheckpoints leaves out the checkpoints that another transaction has locked.
func (tx *simTx) freeCheckpoints(text, consumer string, partitions []int16) *simRows {
	out, db := simAnswer(), tx.p.s.db
	for _, p := range partitions {
		if strings.Contains(text, "SKIP LOCKED") && !db.free(tx, locksOf(consumer, []int16{p})) {
			tx.p.s.count("checkpoint left to others")
			continue
		}
		if strings.Contains(text, "FOR UPDATE") {
			db.take(tx, locksOf(consumer, []int16{p}))
		}
		out.list = append(out.list, []any{p, db.ckpt[ckptKey{consumer, p}]})
	}
	return out
}
