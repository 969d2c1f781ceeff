package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/series"
)

// sum lets the series reach the head of the log.
func (w *testService) sum() {
	w.Helper()
	r := w.runner(series.Consumer(models.DefaultFolds().Series))
	ahead, err := r.Ahead(context.Background())
	w.must(err)
	_, err = r.ReadUpTo(context.Background(), ahead)
	w.must(err)
}

// A series has an entry for each bucket, or for each group with usage, exact to the integer, in pages.
func TestASeriesShowsUsageOverTime(t *testing.T) {
	w, a := newServiceWithAccount(t)
	hour := time.Now().UTC().Truncate(time.Hour)
	at := func(ago int, amount int64, region any) map[string]any {
		e := map[string]any{"timestamp": hour.Add(-time.Duration(ago) * time.Hour).Format(time.RFC3339Nano), "amount": amount}
		if region != nil {
			e["metadata"] = map[string]any{"region": region}
		}
		return e
	}
	w.ingest(a, batch(event("1", at(0, 1<<53-1, "eu")), event("2", at(0, 1<<53-1, "us")), event("3", at(2, 5, "eu")),
		event("4", at(2, 7, nil)), event("5", at(2, 11, "eu"))))
	w.fold()
	path := "/api/v1/usage?feature=api_calls&granularity=hour&from=" + hour.Add(-3*time.Hour).Format(time.RFC3339) + "&to=" +
		hour.Add(time.Hour).Format(time.RFC3339)
	read := func(query string) (text string) {
		for cursor := ""; ; {
			page := w.want(200, call{method: "GET", path: path + query + cursor, key: a.reader})
			for _, entry := range page["data"].([]any) {
				b := entry.(map[string]any)
				group, _ := json.Marshal(b["group"])
				text += fmt.Sprint(b["amount"], "/", b["eventCount"], string(group), " ")
			}
			if page["completeUpTo"] == nil || page["asOfPosition"] == nil {
				t.Fatalf("%v", page)
			}
			if page["nextCursor"] == nil {
				return text
			}
			cursor = "&cursor=" + url.QueryEscape(page["nextCursor"].(string))
		}
	}
	for _, limit := range []string{"", "&limit=1", "&limit=2"} {
		w.same("the answer", read(limit), "0/0null 23/3null 0/0null 18014398509481982/2null ")
		const grouped = `16/2{"region":"eu"} 7/1{"region":null} 9007199254740991/1{"region":"eu"} 9007199254740991/1{"region":"us"} `
		w.same("by region", read(limit+"&groupBy=metadata.region"), grouped)
	}
	w.same("by both keys", read("&groupBy=metadata.model&groupBy=metadata.region&limit=3"),
		`16/2{"model":null,"region":"eu"} 7/1{"model":null,"region":null} 9007199254740991/1{"model":null,"region":"eu"} `+
			`9007199254740991/1{"model":null,"region":"us"} `)
}
