package consume_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/models"
)

// consumerModel is two tenants of one partition whose usage goes through every
// consumer, each of them in two instances, over a pipe that loses, duplicates,
// corrupts and shuffles records, and ahead of the pipe in the process that appended it;
// and the model: sent and discarded events.
type consumerModel struct {
	*Letters
	inline    *Inline // of that process
	partition int16
	tenants   [2]uuid.UUID
	before    events.Counts
	usage     []sentUsage
	folded    int             // events that a consumer was notified of in memory
	inlined   int             // events that were validated as they were recorded
	discarded map[string]bool // tenant and event id
}

type sentUsage struct {
	tenant  uuid.UUID
	id      string
	feature string
	amount  int64
}

func newConsumerModel(s *Letters) *consumerModel {
	a := NewID()
	c := &consumerModel{Letters: s, partition: events.PartitionOf(a), discarded: map[string]bool{}}
	c.tenants = [2]uuid.UUID{a, TenantIn(c.partition)}
	c.before = s.Counts(c.partition)
	c.inline = NewInline(s.Database)
	for _, tenant := range c.tenants {
		c.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly),
			Grant("refused", domain.ResetMonthly))
	}
	return c
}

// record appends usage that is fine, that is refused, and that a broken aggregator
// cannot fold; some of it is there already.
func (c *consumerModel) record(rt *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(rt, "events") {
		u := sentUsage{c.tenants[rapid.IntRange(0, 1).Draw(rt, "tenant")], fmt.Sprint("u", len(c.usage)),
			rapid.SampledFrom([]string{"calls", "calls", "calls", "later", "panics", "refused"}).Draw(rt, "feature"),
			rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount")}
		if len(c.usage) > 0 && rapid.IntRange(0, 4).Draw(rt, "again") == 0 {
			u = c.usage[rapid.IntRange(0, len(c.usage)-1).Draw(rt, "of")]
		} else {
			c.usage = append(c.usage, u)
		}
		at := c.Append(Usage(u.tenant, u.id, u.feature, u.amount, May))[0]
		if rapid.IntRange(0, 9).Draw(rt, "notified") > 0 {
			c.inline.Committed(Separate(c.Read(events.TopicUsageRaw, c.partition, at.Number-1)[:1]))
		}
	}
}

// flow records usage that passes the validator and the aggregator ahead of the pipe, which has
// delivered all before.
func (c *consumerModel) flow(rt *rapid.T) {
	for _, which := range []string{"validator", "aggregator"} {
		r := c.instance(which, false)
		c.inline.Tell(r)
		c.Process(r, c.Topic(r.Consumer.Topic, c.partition, c.Checkpoint(r.Consumer.Name, c.partition)))
	}
	c.record(rt)
	for _, which := range []string{"validator", "aggregator"} {
		c.fold(rt, which)
	}
}

// recordInline records usage of some features in the process that validates it inline if it can.
func (c *consumerModel) recordInline(rt *rapid.T) {
	r := c.instance("validator", false)
	r.Log = c.inline.Inlined
	c.inline.Tell(r)
	c.Process(r, c.Topic(r.Consumer.Topic, c.partition, c.Checkpoint(r.Consumer.Name, c.partition)))
	for range rapid.IntRange(1, 4).Draw(rt, "events") {
		u := sentUsage{c.tenants[rapid.IntRange(0, 1).Draw(rt, "tenant")], fmt.Sprint("u", len(c.usage)),
			rapid.SampledFrom([]string{"calls", "later", "refused"}).Draw(rt, "feature"), rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount")}
		c.usage = append(c.usage, u)
		_, err := c.inline.Inlined.Submit(context.Background(), u.tenant,
			[]metering.Submitted{{Pending: Usage(u.tenant, u.id, u.feature, u.amount, May)}})
		c.Must(err)
		raw := c.Read(events.TopicUsageRaw, c.partition, 0)
		if last := raw[len(raw)-1].Position.Number; c.Checkpoint(events.GroupValidator, c.partition) == last {
			c.inlined++
		}
		if rapid.IntRange(0, 2).Draw(rt, "then") == 0 {
			c.record(rt)
		}
	}
}

// fold folds the events of which a consumer is notified in memory.
func (c *consumerModel) fold(rt *rapid.T, which string) {
	r := c.instance(which, rapid.IntRange(0, 4).Draw(rt, "broken") == 0)
	r.Consumer.MaxPerPartition = rapid.IntRange(1, 20).Draw(rt, "chunk")
	c.inline.Tell(r)
	n, err := r.ReadUpTo(context.Background(), r.Recent.Ahead())
	c.Must(err)
	c.folded += n
}

// instance makes a new consumer, as a restart does; broken is the release before
// its fold was fixed.
func (c *consumerModel) instance(which string, broken bool) *consume.Runner {
	var r *consume.Runner
	switch which {
	case "validator":
		r, _ = c.Validator()
	case "letters":
		r, _ = c.Runner(deadletters.Consumer(models.DefaultFolds().DeadLetters))
	case "commands":
		r, _ = c.Runner(c.Executing.Consumer)
	default:
		if r, _ = c.Aggregator(nil); broken {
			r, _ = c.Aggregator(PoisonedHandler{Handler: c.Aggregating.Consumer.Handler})
		}
	}
	return r
}

// deliver hands a topic over as a bad pipe does, from the checkpoint or from before
// it on, to one instance or to two at once.
func (c *consumerModel) deliver(rt *rapid.T) {
	which := rapid.SampledFrom([]string{"validator", "aggregator", "aggregator", "letters", "commands"}).Draw(rt, "consumer")
	broken := rapid.Bool().Draw(rt, "broken")
	back := rapid.SampledFrom([]int64{0, 0, 3, 1 << 40}).Draw(rt, "rewound by")
	var g errgroup.Group
	for i := range rapid.IntRange(1, 2).Draw(rt, "instances") {
		r := c.instance(which, broken)
		if i == 0 { // the process that appends
			c.inline.Tell(r)
		}
		r.Consumer.MaxPerPartition = rapid.IntRange(1, 20).Draw(rt, "chunk")
		from := max(0, c.Checkpoint(r.Consumer.Name, c.partition)-back)
		batches := deliver(rt, c.Topic(r.Consumer.Topic, c.partition, from))
		g.Go(func() error {
			for _, batch := range batches {
				if err := r.Process(context.Background(), batch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must.OK(rt, g.Wait())
}

// decide retries or discards the projection's dead letters, even if the log has
// moved on.
func (c *consumerModel) decide(rt *rapid.T) {
	for _, tenant := range c.tenants {
		for _, d := range c.LetterList(tenant, "") {
			var err error
			switch rapid.IntRange(0, 5).Draw(rt, "decision") {
			case 0:
				if err = c.Discard(tenant, d.ID); err == nil && d.EventID != "" {
					c.discarded[tenant.String()+d.EventID] = true
				}
			case 1, 2:
				err = c.RetryNow(tenant, d.ID)
			}
			if no := (*domain.Error)(nil); err != nil && !errors.As(err, &no) {
				rt.Fatal(err)
			}
		}
	}
}

func (c *consumerModel) bulkRetry(rt *rapid.T) {
	_, err := c.Bulk(events.BulkRetry, c.tenants[rapid.IntRange(0, 1).Draw(rt, "tenant")], commands.Idempotency{})
	c.Must(err)
}

// Rest processes all events, with folds that accept all of them: it subscribes to
// the refused features and retries failed dead letters until no failed one is left.
func (c *consumerModel) Rest(rt *rapid.T) {
	for _, tenant := range c.tenants {
		c.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly),
			Grant("refused", domain.ResetMonthly), Grant("later", domain.ResetMonthly))
	}
	for round := 0; ; round++ {
		c.Drain(c.Validating, c.Aggregating, c.Lettering, c.Executing, c.Validating, c.Aggregating, c.Lettering)
		left := 0
		for _, tenant := range c.tenants {
			if n := len(c.Failed(tenant)); n > 0 {
				left += n
				_, err := c.Bulk(events.BulkRetry, tenant, commands.Idempotency{})
				c.Must(err)
			}
		}
		if left == 0 {
			return
		}
		if round > 5 {
			rt.Fatalf("%d dead letters stay: %+v", left, c.Failed(c.tenants[0]))
		}
	}
}

// TestP2_ConsumersMatchTheirModel: whatever the pipe and the operators do, in any
// order: at the end each sent event is in its figure once, or was discarded, and
// the identity holds.
func TestP2_ConsumersMatchTheirModel(t *testing.T) {
	s := NewLetters(t)
	localtest.FewChecks(t, 8)
	folded, inlined := 0, 0
	defer func() { t.Logf("%d events were folded ahead of the pipe, %d were validated inline", folded, inlined) }()
	rapid.Check(t, func(rt *rapid.T) {
		c := newConsumerModel(s)
		defer c.inline.Inlined.Close()
		defer func() { folded, inlined = folded+c.folded, inlined+c.inlined }()
		rt.Repeat(map[string]func(*rapid.T){"record": c.record, "deliver": c.deliver, "deliver more": c.deliver, "deliver again": c.deliver,
			"flow": c.flow, "flow on": c.flow, "inline": c.recordInline, "inline again": c.recordInline, "decide": c.decide,
			"retry all": c.bulkRetry, "sum": func(*rapid.T) { c.Drain(c.Summing) },
			"": func(*rapid.T) { c.CheckIdentity() }})
		c.Rest(rt)
		model, rejected := NewLedger(), int64(0)
		for _, u := range c.usage {
			if c.discarded[u.tenant.String()+u.id] {
				rejected++
			} else {
				model.Add(u.tenant, u.feature, u.amount, May)
			}
		}
		got := c.Aggregates()
		for k := range got {
			if k.Tenant != c.tenants[0] && k.Tenant != c.tenants[1] {
				delete(got, k)
			}
		}
		model.Check(rt, got)
		now, all := c.Counts(c.partition), int64(len(c.usage))
		// A retry of a rejected event adds 1 to Accepted and 1 to Rejected.
		if counted := now.Accepted - c.before.Accepted - (now.Rejected - c.before.Rejected); counted != all-rejected ||
			now.Parked != c.before.Parked {
			rt.Fatalf("%d sent, %d discarded: %+v, before %+v", all, rejected, now, c.before)
		}
		c.CheckIdentity()
		c.Drain(c.Summing)
		c.CheckHours()
	})
}
