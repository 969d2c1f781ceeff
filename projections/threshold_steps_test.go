package projections_test

import (
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// The crossings of one batch are in the order of their causes, each by the amount of its own period, and none by usage behind the removal of its threshold.
func TestThresholdsOfMeteredFeaturesInOneBatch(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("bytes", domain.ResetMonthly))
	of := func(feature, period string, amount int64) {
		s.append(plainEvent(tenant, events.UsageValidated, events.Counts{}, events.Validated{RawPosition: 1, EventID: "e", Feature: feature, FeatureType: domain.FeatureMetered,
			PeriodKey: period, Amount: amount, Count: 1, Timestamp: may}))
	}
	s.threshold(tenant, "", 0, 10)
	removed := s.threshold(tenant, "bytes", 0, 15)
	of("bytes", "2026-05", 9)
	of("bytes", "2026-06", 4)
	of("zips", "2026-05", 10)
	of("bytes", "2026-05", 2)
	of("bytes", "2026-06", 7)
	of("apples", "2026-05", 12)
	s.removeThreshold(tenant, removed)
	of("bytes", "2026-05", 5)
	s.drain(s.entitling)
	s.expectCrossings(tenant, "zips 10 ( of ) from 0 to 10", "bytes 10 ( of ) from 9 to 11", "bytes 10 ( of ) from 4 to 11", "apples 10 ( of ) from 0 to 12")
	var inOrder string
	s.must(s.pool.QueryRow(t.Context(), `SELECT string_agg(payload(l)->>'feature', ' ' ORDER BY l.position) FROM event_log_rows l WHERE tenant_id = $1 AND subject = $2`,
		tenant, events.ThresholdCrossed).Scan(&inOrder))
	if inOrder != "zips bytes bytes apples" {
		t.Errorf("the crossings are in the order %s", inOrder)
	}
}
