package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// The validator ends the dead letter of a retried event before the aggregator folds the verdict: a close waits for the fold, and reports no drift.
func TestP8_ACloseWaitsForTheVerdictOfARetry(t *testing.T) {
	f := newCloseFixture(t)
	d := &history{pipelineFixture: f.pipelineFixture, tenant: f.tenant}
	f.record("a", "calls", 5)
	waiting := f.read(events.TopicUsageRaw, f.partition, f.checkpoint(events.GroupValidator, f.partition))
	d.withholdBy(waiting[len(waiting)-1])
	f.flow()
	c := f.request()
	f.waits(c, domain.MissingLetters)
	f.must(f.deciding.retryNow(f.tenant, f.deciding.lettersByEvent(f.tenant, events.StatusFailed)["a"]))
	f.drain(f.deciding.executing)
	f.waits(c, domain.MissingRetries)
	f.drain(f.validating)
	f.waits(c, domain.MissingAggregation)
	f.flow()
	f.ends(c)
	f.want("lines", f.lines(), "calls 5/1")
	f.want("adjustments", f.adjusted(), "")
}
