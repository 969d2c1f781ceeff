package http_test

import (
	"fmt"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// runSagas runs the steps of closes that are due, until each has ended or waits.
func (w *testService) runSagas() {
	w.Helper()
	kind, queue, steps := w.periods().CloseKind(), &store.Sagas{Store: w.store}, commands.SagaSteps([]commands.SagaKind{w.periods().CloseKind()})
	for {
		lease := newID()
		s, err := queue.LeaseSaga(w.Context(), steps, lease, time.Minute)
		w.must(err)
		if s == nil {
			return
		}
		result, err := kind.Run(w.Context(), s)
		w.must(err)
		_, err = queue.SettleSaga(w.Context(), s.ID, lease, func(s *domain.Saga, now time.Time) { s.Apply(result, now) })
		w.must(err)
	}
}

// lastMonth returns the period before the present one, and a time in it that no close of the month confuses with another.
func lastMonth() (key, at string) {
	first := time.Now().UTC().AddDate(0, 0, 1-time.Now().UTC().Day())
	last := first.AddDate(0, 0, -1)
	return last.Format("2006-01"), last.Format("2006-01") + "-15T12:00:00Z"
}

// old returns usage of the last month.
func old(id string, amount int) map[string]any {
	_, at := lastMonth()
	return event(id, map[string]any{"amount": amount, "timestamp": at})
}

func periodsOf(a *account) string { return "/api/v1/tenants/" + a.id + "/periods" }

// closed closes the last month of an account, and returns its path.
func (w *testService) closed(a *account) (path string) {
	w.Helper()
	key, _ := lastMonth()
	path = periodsOf(a) + "/" + key
	w.want(202, call{"POST", path + "/close", bootstrap, nil, `{"reason":"the month is over"}`})
	w.fold()
	w.runSagas()
	if got := w.want(200, call{method: "GET", path: path, key: bootstrap}); got["state"] != "CLOSED" {
		w.Fatalf("the close ended as %v", got)
	}
	return path
}

// lines returns members of the lines of a period.
func (w *testService) lines(path string, members ...string) (list []string) {
	w.Helper()
	for _, line := range w.want(200, call{method: "GET", path: path, key: bootstrap})["lines"].([]any) {
		list = append(list, valuesOf(line.(map[string]any), members...))
	}
	return list
}

// adjustmentsAt returns members of the adjustments that a path lists.
func (w *testService) adjustmentsAt(path string, members ...string) (list []string) {
	w.Helper()
	for _, a := range w.want(200, call{method: "GET", path: path, key: bootstrap})["data"].([]any) {
		list = append(list, valuesOf(a.(map[string]any), members...))
	}
	return list
}

func (w *testService) same(what string, got any, want any) {
	w.Helper()
	if g, v := fmt.Sprint(got), fmt.Sprint(want); g != v {
		w.Errorf("%s: %s instead of %s", what, g, v)
	}
}
