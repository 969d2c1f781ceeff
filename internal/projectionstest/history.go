package projectionstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// History builds a tenant's history with every event that usage can have, beside a
// neighbour in the same partition.
type History struct {
	*Pipeline
	Tenant, Neighbour uuid.UUID
	Partition         int16
	Broken            *consume.Runner // cannot fold the feature "panics"
	letters           *repair.DeadLetters
	Sent              int
}

// NewHistory begins a history of a new tenant.
func NewHistory(s *Pipeline) *History {
	tenant := NewID()
	d := &History{Pipeline: s, Tenant: tenant, Partition: events.PartitionOf(tenant), Neighbour: TenantIn(events.PartitionOf(tenant))}
	d.Broken, _ = s.Aggregator(PoisonedHandler{s.Aggregating.Consumer.Handler})
	d.letters = &repair.DeadLetters{Store: s.Store, Now: time.Now, NewID: NewID}
	d.Subscribe(tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly), Grant("ever", domain.ResetNever))
	d.Subscribe(d.Neighbour, May, Grant("calls", domain.ResetMonthly))
	return d
}

// AddStep lets one more thing happen.
func (d *History) AddStep(rt *rapid.T) {
	d.Helper()
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	aggregator := rapid.SampledFrom([]*consume.Runner{d.Broken, d.Broken, d.Aggregating}).Draw(rt, "aggregator")
	steps := []string{"record", "record", "record", "conflict", "validate", "validate", "aggregate", "aggregate", "withhold", "retry",
		"retry", "grant"}
	switch rapid.SampledFrom(steps).Draw(rt, "step") {
	case "record":
		for range n {
			d.Record(rt)
		}
	case "conflict":
		if d.Sent > 0 {
			d.Append(Conflict(d.Tenant, EscapedID(rapid.IntRange(1, d.Sent).Draw(rt, "of")), events.Position{Number: 1}, NewID().String()))
		}
	case "validate":
		d.ReadAtMost(d.Validating, d.Partition, n)
	case "aggregate":
		d.ReadAtMost(aggregator, d.Partition, n)
	case "withhold":
		on := rapid.SampledFrom([]*consume.Runner{d.Validating, aggregator}).Draw(rt, "on")
		for _, e := range d.Read(on.Consumer.Topic, d.Partition, d.Checkpoint(on.Consumer.Name, d.Partition)) {
			if !e.Withheld && e.TenantID == d.Tenant {
				d.WithholdBy(e)
				return
			}
		}
	case "retry":
		d.Drain(d.Lettering)
		d.Retry(func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "letter") }, rapid.IntRange(1, 2).Draw(rt, "times"))
	case "grant":
		d.Subscribe(d.Tenant, May, Grant("calls", domain.ResetMonthly), Grant("panics", domain.ResetMonthly),
			Grant("ever", domain.ResetNever), Grant("unknown", domain.ResetMonthly))
	}
}

// AddFailures is one of each: a rejection and a failed fold, their retries, each failing
// again, and a retry too many.
func (d *History) AddFailures() {
	d.Helper()
	d.Append(Usage(d.Tenant, "unknown", "unknown", 1, May), Usage(d.Tenant, "panics", "panics", 1, May))
	d.Rest()
	d.Append(Usage(d.Tenant, "withheld", "calls", 1, May))
	d.WithholdBy(d.Read(events.TopicUsageRaw, d.Partition, d.Checkpoint(events.GroupValidator, d.Partition))[0])
	d.Rest()
	for range 3 {
		d.Retry(func(int) int { return 0 }, 2)
		d.Drain(d.Lettering)
	}
	d.Rest()
}

// EscapedID names the event n, so that its JSON looks like an escape that PostgreSQL cannot read.
func EscapedID(n int) string { return fmt.Sprint(`\ude`, n) }

// Record records usage of the tenant, of its neighbour, and an event that may be known.
func (d *History) Record(rt *rapid.T) {
	d.Sent++
	feature := rapid.SampledFrom([]string{"calls", "calls", "ever", "panics", "unknown"}).Draw(rt, "feature")
	at := May.Add(time.Duration(rapid.IntRange(0, 70*24).Draw(rt, "hour")) * time.Hour)
	amount := rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount")
	again := Usage(d.Tenant, EscapedID(rapid.IntRange(1, d.Sent).Draw(rt, "again")), feature, amount, at)
	// the last is known
	d.Append(Usage(d.Tenant, EscapedID(d.Sent), feature, amount, at), Usage(d.Neighbour, NewID().String(), "calls", 1, at), again)
}

// WithholdBy withholds an event as the relay does, with the same cause and keys.
func (d *History) WithholdBy(e events.Envelope) {
	d.Helper()
	letter := Plain(d.Tenant, events.PublishFailed, events.Counts{Parked: 1}, nil)
	failed := events.Failed{SourcePosition: e.Position.Number, SourceEventID: e.EventID, Topic: e.Subject.Topic().Name(),
		Stage: events.StagePublishing, Code: "publish_refused", DeadLetterID: letter.EventID, Payload: e.Payload}
	var retry struct {
		DeadLetterID uuid.UUID
		Attempt      int
	}
	if d.Must(json.Unmarshal(e.Payload, &retry)); retry.Attempt > 0 {
		failed.DeadLetterID, failed.Attempt = retry.DeadLetterID, retry.Attempt
		letter.DedupeKey = events.KeyFailedAgain(retry.DeadLetterID, retry.Attempt)
	}
	letter.Payload, _ = json.Marshal(failed)
	letter.CausationID = e.EventID
	d.Must(pgx.BeginFunc(context.Background(), d.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, '')`,
			e.Position.Partition, e.Position.Number, int16(e.Subject.Topic()), d.Tenant, letter.EventID)
		if err == nil {
			_, err = d.EventLog.AppendTx(context.Background(), tx, []events.Pending{letter})
		}
		return err
	}))
}

// Retry requests the retry of one dead letter and executes it; the second time it
// is refused.
func (d *History) Retry(pick func(n int) int, times int) {
	d.Helper()
	page, err := d.Reads.DeadLetters(context.Background(), Operator,
		deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &d.Tenant, Status: events.StatusFailed},
			Limit: 100})
	d.Must(err)
	if len(page.Data) == 0 {
		return
	}
	letter := page.Data[pick(len(page.Data))]
	for range times {
		request := Plain(d.Tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: letter.ID, Reason: "fixed"})
		request.CorrelationID = NewID()
		at := d.Append(request)[0]
		d.Must(d.Store.ChangeDeadLetters(context.Background(), d.Tenant, func(tx repair.DeadLetterTx) error {
			asked, err := tx.Events([]int64{at.Number})
			if err != nil {
				return err
			}
			faults, err := d.letters.ExecuteRetries(tx, []events.Envelope{asked[at.Number]})
			return errors.Join(append(faults, err)...)
		}))
	}
}

// Rest processes all events in flight.
func (d *History) Rest() {
	d.Helper()
	d.Drain(d.Validating, d.Broken, d.Lettering)
}

// ReadAll reads the tenant's log, or all of the partition.
func (d *History) ReadAll() (own, all []events.Envelope) {
	d.Helper()
	all = d.Read(0, d.Partition, 0)
	for _, e := range all {
		if e.TenantID == d.Tenant {
			own = append(own, e)
		}
	}
	return own, all
}
