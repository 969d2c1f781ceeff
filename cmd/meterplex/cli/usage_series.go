package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/series"
)

// UsageSeries shows the usage of a feature over time.
type UsageSeries struct {
	Feature     string   `required:"" placeholder:"KEY" help:"Of this feature."`
	From        string   `placeholder:"TIME" help:"From this time on, cut to a bucket. Not given: 24 hours, 30 days or 12 months before --to."`
	To          string   `placeholder:"TIME" help:"Before this time, up to the end of its bucket. Not given: now."`
	Granularity string   `enum:"hour,day,month" default:"day" placeholder:"LENGTH" help:"The length of a bucket: hour, day or month, in UTC (default day)."`
	GroupBy     []string `placeholder:"KEY" help:"By the values of a metadata key that the feature declares; at most two."`
	TenantID    string   `placeholder:"ID" aliases:"tenant" help:"Of this tenant; operator keys have to name one."`
	Fresh
}

// Run prints the buckets.
func (c *UsageSeries) Run(a *app) error {
	from, to, err := c.between(a.now())
	if err != nil {
		return err
	}
	q := url.Values{"feature": {c.Feature}, "from": {from.Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}, "granularity": {c.Granularity}, "tenantId": {c.TenantID}}
	columns := []string{"start", "amount", "eventCount"}
	for _, key := range c.GroupBy {
		name := "metadata." + strings.TrimPrefix(key, "metadata.")
		q.Add("groupBy", name)
		columns = append(columns, name)
	}
	all, err := c.all(a, "/usage", q)
	if err != nil {
		return err
	}
	if a.flags.Output == "json" {
		raw, err := json.Marshal(all)
		if err != nil {
			return fmt.Errorf("write the series: %w", err)
		}
		return a.object(raw)
	}
	p := a.rows(columns...)
	for _, r := range all.Data {
		if a.flags.Output != "ndjson" {
			if r, err = flattened(r); err != nil {
				return err
			}
		}
		if err := p.Row(r); err != nil {
			return err
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	if all.CompleteUpTo != "" && all.AsOfPosition != nil {
		a.report("Complete up to %s, position %s.", output.Printable(all.CompleteUpTo), output.Printable(*all.AsOfPosition))
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
func (c *UsageSeries) between(now time.Time) (from, to time.Time, err error) {
	g := series.Granularity(c.Granularity)
	if to, err = timeFlag("--to", c.To, now); err != nil {
		return from, to, err
	}
	if start := g.Floor(to); start.Equal(to) {
		to = start
	} else {
		to = g.Next(start)
	}
	ago := map[series.Granularity]time.Time{series.Hour: to.Add(-24 * time.Hour), series.Day: to.AddDate(0, 0, -30), series.Month: to.AddDate(-1, 0, 0)}[g]
	from, err = timeFlag("--from", c.From, ago)
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
