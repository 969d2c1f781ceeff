package http_test

import (
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
		return map[string]any{"timestamp": hour.Add(-time.Duration(ago) * time.Hour).Format(time.RFC3339), "amount": amount, "metadata": map[string]any{"region": region, "model": model}}
	}
	w.ingest(a, batch(event("1", at(0, 1<<53-1, "eu", "m,1")), event("2", at(0, 1<<53-1, "us", "m\"2")), event("3", at(2, 5, "eu", nil))))
	w.fold()
	start := hour.Add(-60 * 24 * time.Hour)
	const buckets = 60*24 + 1 // two reads
	path := "/api/v1/usage?feature=api_calls&granularity=hour&from=" + start.Format(time.RFC3339) + "&to=" + hour.Add(time.Hour).Format(time.RFC3339)
	answer := w.do(call{"GET", path, a.reader, map[string]string{"Accept": "text/csv"}, nil})
	rows := rowsOf(t, answer.body)
	if answer.status != 200 || answer.header.Get("Content-Type") != "text/csv; charset=utf-8" || answer.header.Get("Vary") != "Accept" || len(rows) != buckets+1 {
		t.Fatalf("%d %v, %d rows", answer.status, answer.header, len(rows))
	}
	if header := strings.Join(rows[0], ","); header != "start,end,amount,eventCount" {
		t.Error(header)
	}
	used := map[int]string{buckets: "18014398509481982 2", buckets - 2: "5 1"}
	for n, row := range rows[1:] {
		begins := start.Add(time.Duration(n) * time.Hour)
		want := fmt.Sprint(begins.Format(time.RFC3339), " ", begins.Add(time.Hour).Format(time.RFC3339), " ", "0 0")
		if figures, ok := used[n+1]; ok {
			want = strings.TrimSuffix(want, "0 0") + figures
		}
		if got := strings.Join(row, " "); got != want {
			t.Errorf("row %d is %s instead of %s", n, got, want)
		}
	}
	grouped := w.do(call{method: "GET", path: path + "&format=csv&tenantId=" + a.id + "&groupBy=metadata.model&groupBy=metadata.region", key: bootstrap})
	if got := rowsOf(t, grouped.body); fmt.Sprint(got[0][2:]) != "[amount eventCount metadata.model metadata.region]" || len(got) != 4 ||
		fmt.Sprint(got[1][2:]) != "[5 1  eu]" || fmt.Sprint(got[2][4:]) != "[m\"2 us]" || fmt.Sprint(got[3][4:]) != "[m,1 eu]" {
		t.Errorf("%d %q", grouped.status, got)
	}
	if head := w.do(call{method: "HEAD", path: path + "&format=csv", key: a.reader}); head.status != 200 || len(head.body) != 0 || head.header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("HEAD: %d, %d bytes, %v", head.status, len(head.body), head.header)
	}
	if json := w.do(call{"GET", path + "&format=json", a.reader, map[string]string{"Accept": "text/csv"}, nil}); json.header.Get("Content-Type") != "application/json" {
		t.Errorf("format=json is answered as %s", json.header.Get("Content-Type"))
	}
	w.refused(w.do(call{"GET", strings.Replace(path, "api_calls", "unknown", 1), a.reader, map[string]string{"Accept": "text/csv"}, nil}), 404, "feature_not_found")
}
