package http_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// groupingsOfLog folds the events of features into the rows of feature_groupings, as feature, since and keys.
func (w *testService) groupingsOfLog() (all []string) {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `SELECT l.payload FROM event_log l WHERE subject = $1 ORDER BY position`,
		int16(events.FeatureDefined))
	w.must(err)
	payloads, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	w.must(err)
	defined := map[string]bool{}
	for _, payload := range payloads {
		var f struct {
			LookupKey    string     `json:"lookupKey"`
			GroupBy      []string   `json:"groupBy"`
			GroupBySince *time.Time `json:"groupBySince"`
		}
		w.must(json.Unmarshal(payload, &f))
		switch {
		case f.GroupBySince != nil:
			all = append(all, fmt.Sprint(f.LookupKey, " ", f.GroupBySince.Format(time.RFC3339Nano), " ", f.GroupBy))
		case !defined[f.LookupKey] && len(f.GroupBy) > 0:
			all = append(all, fmt.Sprint(f.LookupKey, " ", time.Time{}.Format(time.RFC3339Nano), " ", f.GroupBy))
		}
		defined[f.LookupKey] = true
	}
	slices.Sort(all)
	return all
}

// P5: the groupings of features follow from the log: their table equals a fold of the events that define features,
// to the microsecond.
func TestP5_GroupingsFollowFromTheLog(t *testing.T) {
	w := newTestService(t)
	put := func(feature, name string, keys ...string) {
		t.Helper()
		if got := w.do(call{method: "PUT", path: "/api/v1/features/" + feature, key: bootstrap,
			body: map[string]any{"name": name, "type": "METERED", "groupBy": keys}}); got.status > 201 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	put("later", "A")
	put("later", "A", "region")
	put("later", "B", "region") // the keys stay
	w.asOwner(`UPDATE log_heads SET recorded_at = now() + interval '2 days' WHERE partition = 7`)
	put("later", "B", "region", "model")
	put("later", "B", "model", "region")
	w.asOwner(`UPDATE log_heads SET recorded_at = now() WHERE partition = 7`)
	put("later", "B")
	put("later", "B", "model")
	put("first", "C", "a.b", "c_d")
	put("first", "C", "c_d")
	put("none", "D")
	put("none", "E")
	var late int // after the usage of a fast server
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM feature_groupings WHERE since > now() + interval '2 days'`).Scan(&late))
	w.same("groupings after recorded usage", late > 0, true)
	rows, err := w.pool.Query(t.Context(), `SELECT feature, since, keys FROM feature_groupings`)
	w.must(err)
	var table []string
	var feature string
	var since time.Time
	var keys []string
	_, err = pgx.ForEachRow(rows, []any{&feature, &since, &keys}, func() error {
		table = append(table, fmt.Sprint(feature, " ", since.Format(time.RFC3339Nano), " ", keys))
		return nil
	})
	w.must(err)
	slices.Sort(table)
	if folded := w.groupingsOfLog(); len(table) != 7 || !slices.Equal(table, folded) {
		t.Errorf("the table has\n%s\nand the log\n%s", strings.Join(table, "\n"), strings.Join(folded, "\n"))
	}
}
