package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// eventID returns the first 32 hex digits of SHA-256 over the import's name, the
// feature, the row's number and the row, joined by "|". The number distinguishes
// equal rows; neither name nor feature can contain a "|".
func eventID(name, feature string, r *usageRow) string {
	row := strings.Join(r.fields, ",")
	sum := sha256.Sum256([]byte(name + "|" + feature + "|" + strconv.FormatInt(r.number, 10) + "|" + row))
	return hex.EncodeToString(sum[:16])
}

// eventOf returns the JSON of the event for one amount of a row.
func eventOf(name string, a amount, r *usageRow, shift time.Duration) ([]byte, error) {
	sent := &a.n
	if a.kind == typeRetraction {
		sent = nil
	}
	b, err := json.Marshal(struct {
		Type      string            `json:"type,omitempty"`
		EventID   string            `json:"eventId"`
		Ref       string            `json:"correctionRef,omitempty"`
		Feature   string            `json:"feature"`
		Amount    *int64            `json:"amount,omitempty"`
		Timestamp string            `json:"timestamp"`
		Metadata  map[string]string `json:"metadata,omitempty"`
	}{a.kind, eventID(name, a.feature, r), a.ref, a.feature, sent, r.at.Add(shift).UTC().Format(time.RFC3339Nano), r.metadata})
	if err != nil {
		return nil, fmt.Errorf("write the event of line %d: %w", r.line, err)
	}
	return b, nil
}

// usualFormats are tried if no format is given. Each accepts up to nine fraction
// digits.
var usualFormats = [...]string{
	time.RFC3339,
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05",
	"2006-01-02T15:04:05",
}

// parseTime parses a row's time and truncates it to microseconds. The shift is
// truncated, too, so that every run computes the same instant.
func (m *Mapping) parseTime(s string) (time.Time, error) {
	t, err := m.parseExact(s)
	if err != nil {
		return t, err
	}
	// The bounds keep differences within time.Duration.
	if y := t.Year(); y < 1970 || y > 2200 {
		return t, fmt.Errorf("%s is not in the years 1970 to 2200", clipped(s))
	}
	return t.UTC().Truncate(time.Microsecond), nil
}

func (m *Mapping) parseExact(s string) (time.Time, error) {
	bad := fmt.Errorf("%s is not a time; --time-format gives the format of times", clipped(s))
	if strings.Contains(s, ",") { // Go accepts it as a decimal point
		return time.Time{}, bad
	}
	if per := unixUnit(m.TimeFormat); per > 0 {
		return parseUnix(s, per, bad)
	}
	formats := usualFormats[:]
	switch m.TimeFormat {
	case "":
	case "rfc3339":
		formats = []string{time.RFC3339}
	default:
		formats = []string{m.TimeFormat}
	}
	for _, f := range formats {
		if t, err := time.ParseInLocation(f, s, m.Zone); err == nil {
			return t, nil
		}
	}
	return time.Time{}, bad
}

// unixUnit returns how many of a format's units make a second, or 0 if the format
// is not a Unix time.
func unixUnit(format string) int64 {
	switch format {
	case "unix":
		return 1
	case "unix-ms":
		return 1e3
	case "unix-us":
		return 1e6
	case "unix-ns":
		return 1e9
	}
	return 0
}

func parseUnix(s string, per int64, bad error) (time.Time, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, bad
	}
	return time.Unix(n/per, n%per*(1e9/per)), nil
}

// CheckFormat refuses a format without a complete date, and one in which a zone has only a name: Go reads a name that it does not know as UTC.
func (m *Mapping) CheckFormat() error {
	if m.TimeFormat == "" || m.TimeFormat == "rfc3339" || unixUnit(m.TimeFormat) > 0 {
		return nil
	}
	probe := time.Date(2031, 11, 23, 1, 2, 3, 0, time.UTC)
	if t, err := time.Parse(m.TimeFormat, probe.Format(m.TimeFormat)); err != nil || t.Year() != 2031 || t.YearDay() != probe.YearDay() {
		return errors.New("--time-format has to be rfc3339, unix, unix-ms, unix-us, unix-ns or a Go layout with year, month and day, e.g. \"02.01.2006 15:04\"")
	}
	if namesZone(m.TimeFormat) {
		return errors.New("--time-format has a zone name (MST): names are ambiguous, and unknown ones would be read as UTC. Use times with an offset (-07:00 or Z07:00), or times without a zone and --time-zone")
	}
	return nil
}

// namesZone reports whether a layout has the name of a zone and no offset: whether its text depends on the name alone.
func namesZone(layout string) bool {
	in := func(zone string, offset int) string {
		return time.Date(2031, 11, 23, 1, 2, 3, 0, time.FixedZone(zone, offset)).Format(layout)
	}
	return in("AAA", 3600) != in("BBB", 3600) && in("AAA", 3600) == in("AAA", 7200)
}
