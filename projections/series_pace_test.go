package projections_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/series"
)

// ends records when the transactions of a consumer began and ended.
type ends struct {
	mu  sync.Mutex
	all []projections.Batch
}

func (e *ends) Observe(_ *projections.Consumer, b projections.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, b)
}

// The first fold of the series reads the whole log: it rests after each transaction, in proportion to its work, so that
// it takes its share of a core from ingest, and no more. Its figures are those of a fold without rests.
func TestTheFirstFoldOfASeriesYieldsToIngest(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	s.subscribe(tenant, may, grant("calls", domain.ResetMonthly))
	s.declare("calls", time.Time{})
	var batch []events.Pending
	for i := range 300 {
		batch = append(batch, usageEvent(tenant, fmt.Sprint(i), "calls", int64(i+1), may.Add(time.Duration(i)*time.Hour)))
	}
	s.append(batch...)
	s.drain(s.validating, s.aggregating)
	c := series.Consumer(models.DefaultFolds().Series)
	c.MaxPerPartition, c.MaxRecords = 20, 20
	r, _ := s.runner(c)
	seen := &ends{}
	r.Observe, r.Share = seen, 25
	s.drain(r)
	if len(seen.all) < 15 {
		t.Fatalf("%d transactions", len(seen.all))
	}
	for i := 1; i < 15; i++ {
		before, b := seen.all[i-1], seen.all[i]
		rested := b.End.Add(-b.Took).Sub(before.End)
		if want := min(3*before.Took, 200*time.Millisecond); rested < want {
			t.Errorf("after a transaction of %v it rested %v, want %v", before.Took, rested, want)
		}
	}
	if n := s.checkHours(); n != 1 {
		t.Errorf("%d figures", n)
	}
}
