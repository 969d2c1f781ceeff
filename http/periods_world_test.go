package http_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// runSagas runs the steps of closes, or of other kinds, that are due, until each has ended or waits.
func (w *testService) runSagas(kinds ...commands.SagaKind) {
	w.Helper()
	if kinds == nil {
		kinds = []commands.SagaKind{w.periods().CloseKind()}
	}
	for w.runStep(kinds, w.must) != nil {
	}
}

// runStep runs a step that is due, if there is one. A step that fails keeps its lease, as that of a killed instance.
func (w *testService) runStep(kinds []commands.SagaKind, failed func(error)) *domain.Saga {
	w.Helper()
	queue, lease := &store.Sagas{Store: w.store}, newID()
	s, err := queue.LeaseSaga(w.Context(), commands.SagaSteps(kinds), lease, time.Minute)
	w.must(err)
	if s == nil {
		return nil
	}
	result, err := kinds[slices.IndexFunc(kinds, func(k commands.SagaKind) bool { return k.Name == s.Kind })].Run(w.Context(), s)
	if err != nil {
		failed(err)
		return s
	}
	_, err = queue.SettleSaga(w.Context(), s.ID, lease, func(s *domain.Saga, now time.Time) { s.Apply(result, now) })
	w.must(err)
	return s
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
	return w.closedPeriod(a, key)
}

func (w *testService) closedPeriod(a *account, key string) (path string) {
	w.Helper()
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

// holds fails unless a text has a part.
func (w *testService) holds(what, text, part string) {
	w.Helper()
	if !strings.Contains(text, part) {
		w.Errorf("%s has no %s: %s", what, part, text)
	}
}
