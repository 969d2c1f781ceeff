package projections

import (
	"testing"

	"github.com/meterplex/meterplex/events"
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
		{"recorded", usageFacts{recorded: 5}, UsagePending},
		{"validated", usageFacts{recorded: 5, validated: 9, aggregated: 8}, UsageValidated},
		{"aggregated", usageFacts{recorded: 5, validated: 9, aggregated: 9}, UsageAggregated},
		{"rejected", usageFacts{recorded: 5, rejected: true}, UsageRejected},
		{"rejected, with its letter", usageFacts{recorded: 5, rejected: true, letters: letter("VALIDATION", "FAILED", raw, "")}, UsageRejected},
		{"rejected and retried", usageFacts{recorded: 5, rejected: true, letters: letter("VALIDATION", "RETRYING", raw, "")}, UsagePending},
		{"validated by a retry whose end is not folded", usageFacts{recorded: 5, rejected: true, validated: 9, aggregated: 9, letters: letter("VALIDATION", "RETRYING", raw, "")}, UsageAggregated},
		{"withheld", usageFacts{recorded: 5, letters: letter("PUBLISHING", "FAILED", raw, "meterplex-relay")}, UsageDeadLettered},
		{"withheld just now", usageFacts{recorded: 5, failing: []int64{4, 5}}, UsageDeadLettered},
		{"verdict withheld", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("PUBLISHING", "FAILED", validated, "meterplex-relay")}, UsageDeadLettered},
		{"verdict not folded", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "FAILED", validated, events.GroupAggregator)}, UsageDeadLettered},
		{"verdict not folded just now", usageFacts{recorded: 5, validated: 9, aggregated: 9, failing: []int64{9}}, UsageDeadLettered},
		{"verdict to be folded again", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "RETRYING", validated, events.GroupAggregator)}, UsageValidated},
		{"verdict folded at last", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "RESOLVED", validated, events.GroupAggregator)}, UsageAggregated},
		{"verdict discarded", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "DISCARDED", validated, events.GroupAggregator)}, UsageRejected},
		{"a read model beside the way failed", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("AGGREGATION", "DISCARDED", validated, events.GroupEntitlements)}, UsageAggregated},
		{"another payload was refused", usageFacts{recorded: 5, validated: 9, aggregated: 9, letters: letter("INGESTION", "FAILED", raw, "")}, UsageAggregated},
		{"the validator could not fold it", usageFacts{recorded: 5, letters: letter("AGGREGATION", "FAILED", raw, events.GroupValidator)}, UsageDeadLettered},
		{"its rejection is withheld", usageFacts{recorded: 5, rejected: true, letters: letter("PUBLISHING", "FAILED", events.TopicUsageDeadLetter.Name(), "")}, UsageRejected},
	} {
		if got := c.facts.status(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
