package usage

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/series"
)

// rangeOfSeries sets the range of whole buckets, and the names of the groups.
func rangeOfSeries(a *app.App, _ *app.Call, in map[string]any) error {
	text := func(name string) string { s, _ := in[name].(string); return s }
	from, to, err := between(series.Granularity(text("granularity")), text("from"), text("to"), a.Now())
	in["from"], in["to"] = from.Format(time.RFC3339), to.Format(time.RFC3339)
	keys, _ := in["groupBy"].([]string)
	for i, key := range keys {
		keys[i] = "metadata." + strings.TrimPrefix(key, "metadata.")
	}
	return err
}

// showSeries prints the buckets.
func showSeries(a *app.App, l *app.Call) error {
	all, err := l.FigureList(a, "")
	if err != nil {
		return err
	}
	columns := append([]string{"start", "amount", "eventCount"}, app.FlagOf[[]string](l, "InGroupBy")...)
	if a.Flags.Output == "json" {
		raw, err := json.Marshal(all)
		if err != nil {
			return fmt.Errorf("write the series: %w", err)
		}
		return a.Object(raw)
	}
	p := a.Rows(columns...)
	for _, r := range all.Data {
		if a.Flags.Output != "ndjson" {
			if r, err = flattened(r); err != nil {
				return err
			}
		}
		if err := p.Row(r); err != nil {
			return err
		}
	}
	if err := a.Close(p, app.NoRows); err != nil {
		return err
	}
	if all.CompleteUpTo != "" && all.AsOfPosition != nil {
		a.Report("Complete up to %s, position %s.", output.Printable(all.CompleteUpTo), output.Printable(*all.AsOfPosition))
	}
	return nil
}

// flattened returns a bucket with a member for each value of its group.
func flattened(raw json.RawMessage) (json.RawMessage, error) {
	var bucket map[string]json.RawMessage
	err := json.Unmarshal(raw, &bucket)
	var group map[string]json.RawMessage
	if err == nil && bucket["group"] != nil {
		err = json.Unmarshal(bucket["group"], &group)
	}
	for key, value := range group {
		bucket["metadata."+key] = value
	}
	if err == nil {
		raw, err = json.Marshal(bucket)
	}
	if err != nil {
		return nil, fmt.Errorf("read a bucket: %w", err)
	}
	return raw, nil
}

// between returns the range of whole buckets that contains the times of the flags.
func between(g series.Granularity, first, last string, now time.Time) (from, to time.Time, err error) {
	if to, err = timeFlag("--to", last, now); err != nil {
		return from, to, err
	}
	if start := g.Floor(to); start.Equal(to) {
		to = start
	} else {
		to = g.Next(start)
	}
	ago := map[series.Granularity]time.Time{series.Hour: to.Add(-24 * time.Hour), series.Day: to.AddDate(0, 0, -30),
		series.Month: to.AddDate(-1, 0, 0)}[g]
	from, err = timeFlag("--from", first, ago)
	return g.Floor(from), to, err
}

// timeFlag reads a time, or a day in UTC.
func timeFlag(name, text string, absent time.Time) (time.Time, error) {
	if text == "" {
		return absent, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("invalid %s %q: expected RFC 3339, e.g. 2026-05-01T12:00:00Z, or a day", name, text)
}
