package http_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// runWithoutResult runs the step that is due, whose result is lost, and returns its saga, to be run once more, and its lease.
func (w *offboardingWorld) runWithoutResult(step string) (s *domain.Saga, lease uuid.UUID) {
	w.Helper()
	w.until(step, false)
	_, err := w.pool.Exec(w.Context(), `UPDATE sagas SET next_at = now() WHERE kind = 'offboarding' AND ended_at IS NULL`)
	w.must(err)
	lease = newID()
	s, err = (&store.Sagas{Store: w.store}).LeaseSaga(w.Context(), commands.SagaSteps([]commands.SagaKind{w.kind}), lease, time.Minute)
	w.must(err)
	w.same("the step", s.Step, step)
	_, err = w.kind.Run(w.Context(), s)
	w.must(err)
	return s, lease
}

// A cancelled offboarding whose last result was lost ends as reverted, also if the tenant is offboarded again before its saga runs once more.
func TestP8_ARevertedOffboardingEndsAfterTheNextHasBegun(t *testing.T) {
	w := newOffboardingWorld(t)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	w.until("close", false)
	w.want(202, call{"POST", w.path + "/cancel", bootstrap, nil, `{"reason":"they stay"}`})
	cancelled, lease := w.runWithoutResult("revert")
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"a second time"}`})
	result, err := w.kind.Run(t.Context(), cancelled)
	w.must(err)
	settled, err := (&store.Sagas{Store: w.store}).SettleSaga(t.Context(), cancelled.ID, lease, func(s *domain.Saga, now time.Time) { s.Apply(result, now) })
	w.must(err)
	w.same("the saga", settled.State+" "+settled.Outcome, "COMPENSATED compensated")
	for _, unknown := range []string{"none", newID().String()} {
		cancelled.Key = unknown
		result, err := w.kind.Run(t.Context(), cancelled)
		w.must(err)
		w.same("the end without an offboarding", result.End+": "+result.Reason, "FAILED: the offboarding "+unknown+" does not exist")
	}
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
}

// A repetition of the export whose result was lost does not read the figures and the log again: they are locked meanwhile. The manifest that is stored remains.
func TestP8_ARepeatedExportMakesNoSecondManifest(t *testing.T) {
	w := newOffboardingWorld(t)
	w.want(202, call{"POST", w.path, bootstrap, nil, `{"reason":"the contract ended"}`})
	saga, lease := w.runWithoutResult("export")
	before := w.want(200, call{method: "GET", path: w.path, key: bootstrap})["manifestHash"]
	owner, err := pgx.Connect(t.Context(), w.pool.Config().ConnString())
	w.must(err)
	defer owner.Close(t.Context())
	lock, err := owner.Begin(t.Context())
	w.must(err)
	_, err = lock.Exec(t.Context(), `LOCK TABLE period_lines IN ACCESS EXCLUSIVE MODE`)
	w.must(err)
	result, err := w.kind.Run(t.Context(), saga)
	w.must(err)
	w.must(lock.Rollback(t.Context()))
	w.same("the next step", result.Step, "archive")
	_, err = (&store.Sagas{Store: w.store}).SettleSaga(t.Context(), saga.ID, lease, func(s *domain.Saga, now time.Time) { s.Apply(result, now) })
	w.must(err)
	w.until("", false)
	w.same("status", w.status(), "ARCHIVED")
	w.same("the manifest", w.want(200, call{method: "GET", path: w.path, key: bootstrap})["manifestHash"], before)
}
