package projections_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
)

// history builds a tenant's history with every event that usage can have, beside a
// neighbour in the same partition.
type history struct {
	*pipelineFixture
	tenant, neighbour uuid.UUID
	partition         int16
	broken            *consume.Runner // cannot fold the feature "panics"
	letters           *commands.DeadLetters
	sent              int
}

func newHistory(s *pipelineFixture) *history {
	tenant := newID()
	d := &history{pipelineFixture: s, tenant: tenant, partition: events.PartitionOf(tenant), neighbour: tenantIn(events.PartitionOf(tenant))}
	d.broken, _ = s.aggregator(poisonedHandler{s.aggregating.Consumer.Handler})
	d.letters = &commands.DeadLetters{Store: s.store, Now: time.Now, NewID: newID}
	d.subscribe(tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly), grant("ever", domain.ResetNever))
	d.subscribe(d.neighbour, may, grant("calls", domain.ResetMonthly))
	return d
}

// addStep lets one more thing happen.
func (d *history) addStep(rt *rapid.T) {
	d.Helper()
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	aggregator := rapid.SampledFrom([]*consume.Runner{d.broken, d.broken, d.aggregating}).Draw(rt, "aggregator")
	steps := []string{"record", "record", "record", "conflict", "validate", "validate", "aggregate", "aggregate", "withhold", "retry", "retry", "grant"}
	switch rapid.SampledFrom(steps).Draw(rt, "step") {
	case "record":
		for range n {
			d.record(rt)
		}
	case "conflict":
		if d.sent > 0 {
			d.append(conflict(d.tenant, escapedID(rapid.IntRange(1, d.sent).Draw(rt, "of")), events.Position{Number: 1}, newID().String()))
		}
	case "validate":
		d.readAtMost(d.validating, d.partition, n)
	case "aggregate":
		d.readAtMost(aggregator, d.partition, n)
	case "withhold":
		on := rapid.SampledFrom([]*consume.Runner{d.validating, aggregator}).Draw(rt, "on")
		for _, e := range d.read(on.Consumer.Topic, d.partition, d.checkpoint(on.Consumer.Name, d.partition)) {
			if !e.Withheld && e.TenantID == d.tenant {
				d.withholdBy(e)
				return
			}
		}
	case "retry":
		d.drain(d.lettering)
		d.retry(func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "letter") }, rapid.IntRange(1, 2).Draw(rt, "times"))
	case "grant":
		d.subscribe(d.tenant, may, grant("calls", domain.ResetMonthly), grant("panics", domain.ResetMonthly), grant("ever", domain.ResetNever), grant("unknown", domain.ResetMonthly))
	}
}

// addFailures is one of each: a rejection and a failed fold, their retries, each failing
// again, and a retry too many.
func (d *history) addFailures() {
	d.Helper()
	d.append(usageEvent(d.tenant, "unknown", "unknown", 1, may), usageEvent(d.tenant, "panics", "panics", 1, may))
	d.Rest()
	d.append(usageEvent(d.tenant, "withheld", "calls", 1, may))
	d.withholdBy(d.read(events.TopicUsageRaw, d.partition, d.checkpoint(events.GroupValidator, d.partition))[0])
	d.Rest()
	for range 3 {
		d.retry(func(int) int { return 0 }, 2)
		d.drain(d.lettering)
	}
	d.Rest()
}

// escapedID names the event n, so that its JSON looks like an escape that PostgreSQL cannot read.
func escapedID(n int) string { return fmt.Sprint(`\ude`, n) }

func (d *history) record(rt *rapid.T) {
	d.sent++
	feature := rapid.SampledFrom([]string{"calls", "calls", "ever", "panics", "unknown"}).Draw(rt, "feature")
	at := may.Add(time.Duration(rapid.IntRange(0, 70*24).Draw(rt, "hour")) * time.Hour)
	amount := rapid.Int64Range(1, 1<<53-1).Draw(rt, "amount")
	again := usageEvent(d.tenant, escapedID(rapid.IntRange(1, d.sent).Draw(rt, "again")), feature, amount, at)
	d.append(usageEvent(d.tenant, escapedID(d.sent), feature, amount, at), usageEvent(d.neighbour, newID().String(), "calls", 1, at), again) // the last is known
}

// withholdBy withholds an event as the relay does, with the same cause and keys.
func (d *history) withholdBy(e events.Envelope) {
	d.Helper()
	letter := plainEvent(d.tenant, events.PublishFailed, events.Counts{Parked: 1}, nil)
	failed := events.Failed{SourcePosition: e.Position.Number, SourceEventID: e.EventID, Topic: e.Subject.Topic().Name(), KafkaOffset: -1,
		Stage: events.StagePublishing, Code: "publish_refused", DeadLetterID: letter.EventID, Payload: e.Payload}
	var retry struct {
		DeadLetterID uuid.UUID
		Attempt      int
	}
	if d.must(json.Unmarshal(e.Payload, &retry)); retry.Attempt > 0 {
		failed.DeadLetterID, failed.Attempt = retry.DeadLetterID, retry.Attempt
		letter.DedupeKey = events.KeyFailedAgain(retry.DeadLetterID, retry.Attempt)
	}
	letter.Payload, _ = json.Marshal(failed)
	letter.CausationID = e.EventID
	d.must(pgx.BeginFunc(context.Background(), d.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, '')`,
			e.Position.Partition, e.Position.Number, int16(e.Subject.Topic()), d.tenant, letter.EventID)
		if err == nil {
			_, err = d.log.AppendTx(context.Background(), tx, []events.Pending{letter})
		}
		return err
	}))
}

// retry requests the retry of one dead letter and executes it; the second time it
// is refused.
func (d *history) retry(pick func(n int) int, times int) {
	d.Helper()
	page, err := d.reads.DeadLetters(context.Background(), operator, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &d.tenant, Status: events.StatusFailed}, Limit: 100})
	d.must(err)
	if len(page.Data) == 0 {
		return
	}
	letter := page.Data[pick(len(page.Data))]
	for range times {
		request := plainEvent(d.tenant, events.RetryRequested, events.Counts{}, events.Retry{DeadLetterID: letter.ID, Reason: "fixed"})
		request.CorrelationID = newID()
		at := d.append(request)[0]
		d.must(d.store.ChangeDeadLetters(context.Background(), d.tenant, func(tx commands.DeadLetterTx) error {
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
func (d *history) Rest() {
	d.Helper()
	d.drain(d.validating, d.broken, d.lettering)
}

// readAll reads the tenant's log, or all of the partition.
func (d *history) readAll() (own, all []events.Envelope) {
	d.Helper()
	all = d.read(0, d.partition, 0)
	for _, e := range all {
		if e.TenantID == d.tenant {
			own = append(own, e)
		}
	}
	return own, all
}
