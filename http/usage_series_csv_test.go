package http_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"
)

// As CSV all buckets are one answer, with the figures of the pages, and a column for each key of the query.
func TestASeriesIsOneAnswerAsCSV(t *testing.T) {
	w, a := newServiceWithAccount(t)
	hour := time.Now().UTC().Truncate(time.Hour)
	at := func(ago int, amount int64, region, model any) map[string]any {
		return map[string]any{"timestamp": hour.Add(-time.Duration(ago) * time.Hour).Format(time.RFC3339), "amount": amount,
			"metadata": map[string]any{"region": region, "model": model}}
	}
	w.ingest(a, batch(event("1", at(0, 1<<53-1, "eu", "m,1")), event("2", at(0, 1<<53-1, "us", "m\"2")), event("3", at(2, 5, "eu", nil))))
	w.fold()
	start := hour.Add(-60 * 24 * time.Hour)
	const buckets = 60*24 + 1 // two reads
	path := "/api/v1/usage?feature=api_calls&granularity=hour&from=" + start.Format(time.RFC3339) + "&to=" +
		hour.Add(time.Hour).Format(time.RFC3339)
	asCSV := map[string]string{"Accept": "text/csv"}
	answer := w.do(call{"GET", path, a.reader, asCSV, nil})
	rows := rowsOf(t, answer.body)
	w.same("the answer", fmt.Sprint(answer.status, answer.header.Get("Content-Type"), answer.header.Get("Vary"), len(rows), rows[0]),
		fmt.Sprint(200, "text/csv; charset=utf-8", "Accept", buckets+1, []string{"start", "end", "amount", "eventCount"}))
	used := map[int]string{buckets: " 18014398509481982 2", buckets - 2: " 5 1"}
	for n, row := range rows[1:] {
		begins := start.Add(time.Duration(n) * time.Hour)
		figures := cmp.Or(used[n+1], " 0 0")
		w.same(fmt.Sprint("row ", n), strings.Join(row, " "), begins.Format(time.RFC3339)+" "+begins.Add(time.Hour).Format(time.RFC3339)+
			figures)
	}
	grouped := w.do(call{method: "GET", path: path + "&format=csv&tenantId=" + a.id + "&groupBy=metadata.model&groupBy=metadata.region",
		key: bootstrap})
	got := rowsOf(t, grouped.body)
	w.same("in groups", fmt.Sprint(got[0][2:], got[1][2:], got[2][4:], got[3][4:]),
		`[amount eventCount metadata.model metadata.region] [5 1  eu] [m"2 us] [m,1 eu]`)
	head := w.do(call{method: "HEAD", path: path + "&format=csv", key: a.reader})
	w.same("HEAD", fmt.Sprint(head.status, len(head.body), head.header.Get("Content-Type")), "200 0text/csv; charset=utf-8")
	w.same("format=json", w.do(call{"GET", path + "&format=json", a.reader, asCSV, nil}).header.Get("Content-Type"), "application/json")
	w.refused(w.do(call{"GET", strings.Replace(path, "api_calls", "unknown", 1), a.reader, asCSV, nil}), 404, "feature_not_found")
}
