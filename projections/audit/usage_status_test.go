package audit

import (
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func TestUsageStatus(t *testing.T) {
	raw, validated := events.TopicUsageRaw.Name(), events.TopicUsageValidated.Name()
	letter := func(stage, status, topic, consumer string) []usageLetter {
		return []usageLetter{{stage, status, topic, consumer}}
	}
	for _, c := range []struct {
		name  string
		facts usageFacts
		want  string
	}{
		{"recorded", usageFacts{recorded: 5}, projections.UsagePending},
		{"validated", usageFacts{recorded: 5, validated: 9, aggregated: 8}, projections.UsageValidated},
		{"aggregated", usageFacts{recorded: 5, validated: 9, aggregated: 9}, projections.UsageAggregated},
		{"rejected", usageFacts{recorded: 5, rejected: true}, projections.UsageRejected},
		{"rejected, with its letter", usageFacts{recorded: 5, rejected: true, letters: letter("VALIDATION", "FAILED", raw, "")},
			projections.UsageRejected},
		{"rejected and retried", usageFacts{recorded: 5, rejected: true, letters: letter("VALIDATION", "RETRYING", raw, "")},
			projections.UsagePending},
		{"validated by a retry whose end is not folded", usageFacts{recorded: 5, rejected: true, validated: 9, aggregated: 9,
			letters: letter("VALIDATION", "RETRYING", raw, "")}, projections.UsageAggregated},
		{"withheld", usageFacts{recorded: 5, letters: letter("PUBLISHING", "FAILED", raw, "meterplex-relay")},
			projections.UsageDeadLettered},
		{"withheld just now", usageFacts{recorded: 5, failing: []int64{4, 5}}, projections.UsageDeadLettered},
		{"verdict withheld", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("PUBLISHING", "FAILED", validated,
			"meterplex-relay")}, projections.UsageDeadLettered},
		{"verdict not folded", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "FAILED", validated,
			events.GroupAggregator)}, projections.UsageDeadLettered},
		{"verdict not folded just now", usageFacts{recorded: 5, validated: 9, aggregated: 9, failing: []int64{9}},
			projections.UsageDeadLettered},
		{"verdict to be folded again", usageFacts{recorded: 5, validated: 9, aggregated: 9,
			letters: letter("AGGREGATION", "RETRYING", validated, events.GroupAggregator)}, projections.UsageValidated},
		{"verdict folded at last", usageFacts{recorded: 5, validated: 9, aggregated: 9,
			letters: letter("AGGREGATION", "RESOLVED", validated, events.GroupAggregator)}, projections.UsageAggregated},
		{"verdict discarded", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "DISCARDED", validated,
			events.GroupAggregator)}, projections.UsageRejected},
		{"a read model beside the way failed", usageFacts{recorded: 5, validated: 9, aggregated: 9,
			letters: letter("AGGREGATION", "DISCARDED", validated, events.GroupEntitlements)}, projections.UsageAggregated},
		{"another payload was refused", usageFacts{recorded: 5, validated: 9, aggregated: 9,
			letters: letter("INGESTION", "FAILED", raw, "")}, projections.UsageAggregated},
		{"the validator could not fold it", usageFacts{recorded: 5, letters: letter("AGGREGATION", "FAILED", raw, events.GroupValidator)},
			projections.UsageDeadLettered},
		{"its rejection is withheld", usageFacts{recorded: 5, rejected: true,
			letters: letter("PUBLISHING", "FAILED", events.TopicUsageDeadLetter.Name(), "")}, projections.UsageRejected},
	} {
		if got := c.facts.status(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
