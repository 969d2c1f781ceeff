package projections_test

import (
	"errors"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/projections/consume"
)

// Whether the commit or only its answer was lost, the batch is redelivered and counts once.
func TestP2_CommitWithoutAnAnswerCountsOnce(t *testing.T) {
	for name, lost := range localtest.LostCommits {
		t.Run(name, func(t *testing.T) {
			w := newLogFixture(t)
			tenant := tenantIn(6)
			w.verdicts(tenant, "calls", 4)
			r, seen := w.aggregator(nil)
			c, url := localtest.NewCutter(t, w.url)
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, ApplicationName: "cut"})
			w.must(err)
			t.Cleanup(pool.Close)
			r.Pool = pool
			records := w.topic(events.TopicUsageValidated, 6, 0)
			lost(c).Store(1)
			err = r.Process(t.Context(), records)
			if !errors.Is(err, consume.ErrCommitUnknown) || c.Reached.Load() != 1 {
				t.Fatalf("a commit without an answer returned %v, after %d cuts", err, c.Reached.Load())
			}
			w.process(r, records)
			if got := w.applied(tenant, "calls"); got != 4 {
				t.Errorf("applied %d, want 4", got)
			}
			if durable := lost(c) == &c.Answer; (seen.duplicates == 4) != durable {
				t.Errorf("told %+v", seen)
			}
		})
	}
}
