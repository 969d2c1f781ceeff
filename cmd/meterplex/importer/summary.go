package importer

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// Summary is the result of an import. Every row and every event of the file is in
// exactly one of its counts. An event that was sent again because the first
// response was lost counts as a duplicate.
type Summary struct {
	Import             string                    `json:"import"`
	Rows               int64                     `json:"rows"`
	SkippedBadRows     int64                     `json:"skippedBadRows"`
	OtherRows          int64                     `json:"otherRows"` // left out by --where
	SkippedZeroAmounts int64                     `json:"skippedZeroAmounts"`
	Events             int64                     `json:"events"`
	Accepted           int64                     `json:"accepted"`
	Duplicates         int64                     `json:"duplicates"`
	Conflicts          int64                     `json:"conflicts"`
	Rejected           int64                     `json:"rejected"`
	RejectedByCode     map[string]int64          `json:"rejectedByCode"`
	NotSent            int64                     `json:"notSent"` // not sent, or without a response
	Features           map[string]FeatureSummary `json:"features"`
	Anchor             *time.Time                `json:"anchor"` // shifted time of the latest row
	Seconds            float64                   `json:"seconds"`

	Recipients []*Recipient `json:"-"` // of the events

	times string
}

// FeatureSummary sums the accepted and duplicate events of one feature: Amount is that of usage, since a correction has a new amount, not a
// difference.
type FeatureSummary struct {
	Events int64 `json:"events"`
	Amount int64 `json:"amount"`
}

func newSummary(job Job, s scan) Summary {
	return Summary{
		Import: job.Name, Rows: s.rows, SkippedBadRows: s.bad, OtherRows: s.others, SkippedZeroAmounts: s.zero,
		Events: s.events, NotSent: s.events, times: job.Times,
		RejectedByCode: map[string]int64{}, Features: map[string]FeatureSummary{},
	}
}

func (s *Summary) count(v *client.Verdict, a amount) {
	s.NotSent--
	switch v.Status {
	case "accepted":
		s.Accepted++
	case "duplicate":
		s.Duplicates++
	case "conflict":
		s.Conflicts++
	default:
		s.Rejected++
		s.RejectedByCode[v.Code]++
	}
	if v.Good() {
		f := s.Features[a.feature]
		f.Events++
		if a.kind == "" {
			f.Amount += a.n
		}
		s.Features[a.feature] = f
	}
}

// Complete reports whether every event is recorded.
func (s *Summary) Complete() bool { return s.Accepted+s.Duplicates == s.Events }

// Remark returns the result as a sentence.
func (s *Summary) Remark() string {
	switch {
	case s.Events == 0 && s.OtherRows > 0:
		return "There is no usage in the rows that --where selects."
	case s.Events == 0:
		return "There is no usage in the file."
	case s.Duplicates == s.Events:
		return fmt.Sprintf("No new events: all %d were known.", s.Events)
	case s.Complete():
		return fmt.Sprintf("All %d events are accepted; the figures follow (--wait waits for them).", s.Events)
	case s.RejectedByCode["timestamp_too_old"] > 0 && s.times == TimesShifted:
		return fmt.Sprintf("The import %q was begun at %s, too long ago for the missing events. --again with another --name sends all "+
			"events again, and those that were sent stay.", s.Import, s.Anchor.Format(time.RFC3339))
	case s.RejectedByCode["timestamp_too_old"] > 0:
		return "Events that old need a key with the scope usage:backfill."
	}
	return fmt.Sprintf("%d of %d events are NOT recorded; correct the cause and run the same import again.",
		s.Events-s.Accepted-s.Duplicates, s.Events)
}

// meter shows the progress of an import: a bar on a terminal, else a line every 10 s.
type meter struct {
	bar    *progressbar.ProgressBar
	report func(format string, args ...any)
	now    func() time.Time
	total  int64
	done   int64
	start  time.Time
	last   time.Time
}

func (im *Importer) newMeter(total int64) *meter {
	m := &meter{report: im.Report, now: im.Now, total: total, start: im.Now(), last: im.Now()}
	if im.Progress == nil {
		m.report = func(string, ...any) {}
	} else if im.Terminal {
		m.bar = newBar(im.Progress, total)
	}
	return m
}

func newBar(w io.Writer, total int64) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("events"), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetDescription("importing"), progressbar.OptionOnCompletion(func() { fmt.Fprintln(w) }))
}

func (m *meter) add(n int) {
	m.done += int64(n)
	if m.bar != nil {
		_ = m.bar.Add(n) // an import continues if its bar cannot be drawn
		return
	}
	now := m.now()
	if now.Sub(m.last) < output.ProgressEvery {
		return
	}
	m.last = now
	rate := float64(m.done) / now.Sub(m.start).Seconds()
	left := time.Duration(float64(m.total-m.done) / rate * float64(time.Second))
	m.report("%d of %d events (%d %%), %.0f/s, about %s left", m.done, m.total, 100*m.done/m.total, rate, left.Round(time.Second))
}

func (m *meter) finish() {
	if m.bar != nil && m.done < m.total {
		_ = m.bar.Exit()
	}
}
