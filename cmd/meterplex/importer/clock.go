package importer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// clock reads the times of a column.
type clock struct {
	zone    *time.Location
	unit    string   // of Unix times; "": layouts
	layouts []layout // tried in this order, from the one of the last time on
	last    int
}

// layout is a form of times, as in package time.
type layout struct {
	text  string
	zoned bool // texts name their offset, or are in UTC
	day   bool // texts are dates without a time
}

// usualLayouts are tried if no format is given: RFC 3339, and times as PostgreSQL, BigQuery, other databases and RFC 1123 write them. All
// of them accept a fraction of seconds.
func usualLayouts() []layout {
	layouts := []layout{{text: time.RFC3339, zoned: true}}
	for _, text := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04"} {
		layouts = append(layouts, layout{text: text})
		for _, offset := range []string{"Z07:00", "Z0700", "Z07", " Z07:00", " Z0700", " UTC", " GMT", " -0700 MST"} {
			layouts = append(layouts, layout{text: text + offset, zoned: true})
		}
	}
	for _, text := range []string{"Mon, _2 Jan 2006 15:04:05 GMT", "Mon, _2 Jan 2006 15:04:05 UTC", "Mon, _2 Jan 2006 15:04:05 -0700"} {
		layouts = append(layouts, layout{text: text, zoned: true})
	}
	return append(layouts, layout{text: "2006-01-02", day: true})
}

// newClock returns the clock of the format: rfc3339, unix, unix-ms, unix-us, unix-ns, a layout of Go or of strftime, or "" for
// usualLayouts.
func (m *Mapping) newClock() (*clock, error) {
	c := &clock{zone: m.Zone}
	format := m.TimeFormat
	switch {
	case format == "":
		c.layouts = usualLayouts()
	case format == "rfc3339":
		c.layouts = []layout{{text: time.RFC3339, zoned: true}}
	case format == "%s":
		c.unit = "unix"
	case unixUnits[format] > 0:
		c.unit = format
	case strings.Contains(format, "%"):
		texts, err := strftime(format)
		if err != nil {
			return nil, err
		}
		return c, c.add(texts...)
	default:
		return c, c.add(format)
	}
	return c, nil
}

// add adds layouts that are exact.
func (c *clock) add(texts ...string) error {
	for _, text := range texts {
		l, err := newLayout(text)
		if err != nil {
			return err
		}
		c.layouts = append(c.layouts, l)
	}
	return nil
}

// read returns the time of a row, truncated to microseconds as in the service.
func (c *clock) read(s string) (time.Time, error) {
	t, err := c.readExact(s)
	if err != nil {
		return t, err
	}
	if !inRange(t) {
		return t, fmt.Errorf("%s is %s, not in the years 1990 to 2200%s", clipped(s), t.UTC().Format(time.DateOnly), c.otherUnit(s))
	}
	return t.UTC().Truncate(time.Microsecond), nil
}

// inRange reports whether usage may have a time. A Unix time in another unit than named is outside, and so is a time that was empty.
func inRange(t time.Time) bool { return t.Year() >= 1990 && t.Year() <= 2200 }

func (c *clock) readExact(s string) (time.Time, error) {
	if c.unit != "" {
		return readUnix(s, c.unit)
	}
	for i := range c.layouts {
		n := (c.last + i) % len(c.layouts)
		l := &c.layouts[n]
		if strings.Count(s, ",") != strings.Count(l.text, ",") { // Go reads a comma as a decimal point
			continue
		}
		t, err := time.Parse(l.text, s)
		if err != nil {
			continue
		}
		if strings.HasPrefix(l.text, "Mon") && !strings.HasPrefix(s, t.Format("Mon")) {
			return t, fmt.Errorf("%s is a %s", clipped(s), t.Weekday())
		}
		c.last = n
		if l.zoned {
			return t, nil
		}
		return c.local(t, l.day)
	}
	return time.Time{}, c.unreadable(s)
}

// unreadable is the error of a text in none of the layouts, with the remedy.
func (c *clock) unreadable(s string) error {
	if unit := unitOf(s); unit != "" {
		return fmt.Errorf("%s is a number: --time-format %s reads it as a Unix time", clipped(s), unit)
	}
	return fmt.Errorf(`%s is not a time; --time-format gives the format of times, e.g. "02.01.2006 15:04" or "%%d.%%m.%%Y %%H:%%M"`,
		clipped(s))
}

// local returns the instant of a local time, which time.Parse read as UTC. A day begins at its first instant.
func (c *clock) local(wall time.Time, day bool) (time.Time, error) {
	if c.zone == time.UTC {
		return wall, nil
	}
	offset := func(at time.Time) time.Duration {
		_, seconds := at.In(c.zone).Zone()
		return time.Duration(seconds) * time.Second
	}
	first, second := wall.Add(-offset(wall.AddDate(0, 0, -1))), wall.Add(-offset(wall.AddDate(0, 0, 1)))
	isFirst, isSecond := first.Add(offset(first)).Equal(wall), second.Add(offset(second)).Equal(wall)
	switch {
	case isSecond && !isFirst:
		return second, nil
	case isFirst && (!isSecond || first.Equal(second)), day:
		return first, nil
	case isFirst:
		return first, fmt.Errorf("%s is ambiguous: it exists twice in %s, where clocks are put back; export times in UTC or with "+
			"their offset", wall.Format(time.DateTime), c.zone)
	}
	return first, fmt.Errorf("%s does not exist in %s, where clocks are put forward; export times in UTC or with their offset",
		wall.Format(time.DateTime), c.zone)
}

// unixUnits are the units of Unix times: how many make a second.
var unixUnits = map[string]int64{"unix": 1, "unix-ms": 1e3, "unix-us": 1e6, "unix-ns": 1e9}

// readUnix reads a whole number, or a fraction of it with up to nine digits.
func readUnix(s, unit string) (time.Time, error) {
	parts := decimal.FindStringSubmatch(s)
	if parts == nil || len(parts[2]) > 9 {
		return time.Time{}, fmt.Errorf("%s is not a Unix time (--time-format %s)", clipped(s), unit)
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a Unix time (--time-format %s)", clipped(s), unit)
	}
	billionths, _ := strconv.ParseInt((parts[2] + "000000000")[:9], 10, 64)
	per := unixUnits[unit]
	return time.Unix(n/per, n%per*(1e9/per)+billionths/per), nil
}

// otherUnit names the unit in which a Unix time would be usual.
func (c *clock) otherUnit(s string) string {
	if unit := unitOf(s); c.unit != "" && unit != "" {
		t, _ := readUnix(s, unit)
		return fmt.Sprintf("; with --time-format %s it is %s", unit, t.UTC().Format(time.RFC3339))
	}
	return ""
}

// unitOf returns the unit in which a number is a usual Unix time, "" if there is none.
func unitOf(s string) string {
	for unit := range unixUnits {
		if t, err := readUnix(s, unit); err == nil && inRange(t) {
			return unit
		}
	}
	return ""
}

// elements matches the elements of a layout, and names what each of them sets.
var elements = []struct {
	field   string
	pattern *regexp.Regexp
}{
	{"fraction", regexp.MustCompile(`([.,](?:0+|9+))(?:[^0-9]|$)`)}, {"offset", regexp.MustCompile(`[-Z]07:?00:?00|[-Z]07:?00|[-Z]07`)},
	{"zone", regexp.MustCompile(`MST`)},
	{"year", regexp.MustCompile(`2006`)}, {"day of the year", regexp.MustCompile(`002|__2`)},
	{"month", regexp.MustCompile(`January|Jan|01`)}, {"weekday", regexp.MustCompile(`Monday|Mon`)},
	{"year", regexp.MustCompile(`06`)}, {"day", regexp.MustCompile(`02|_2`)}, {"hour", regexp.MustCompile(`15|03`)},
	{"minute", regexp.MustCompile(`04`)}, {"second", regexp.MustCompile(`05`)},
	{"half", regexp.MustCompile(`PM|pm`)}, {"month", regexp.MustCompile(`1`)}, {"day", regexp.MustCompile(`2`)},
	{"hour", regexp.MustCompile(`3`)},
	{"minute", regexp.MustCompile(`4`)}, {"second", regexp.MustCompile(`5`)},
}

// errLayout is the error of a format without a date.
var errLayout = errors.New(
	`--time-format has to be rfc3339, unix, unix-ms, unix-us, unix-ns, or a layout with year, month and day, e.g. ` +
		`"02.01.2006 15:04" or "%d.%m.%Y %H:%M"`)

// newLayout accepts a layout only if it has a whole date and no text that could be a zone, and if several instants at several offsets are
// the same after they are formatted and parsed.
func newLayout(text string) (layout, error) {
	if err := onlyElements(text); err != nil {
		return layout{}, err
	}
	at := func(year, month, day, hour, minute, second, offset int) time.Time {
		return time.Date(year, time.Month(month), day, hour, minute, second, 0, time.FixedZone("XX"+string(rune('N'+offset)), offset*3600))
	}
	format := func(hour, offset int) string { return at(2031, 11, 23, hour, 0, 0, offset).Format(text) }
	l := layout{text: text, zoned: format(1, 1) != format(1, 2), day: format(1, 1) == format(2, 1) && format(1, 1) == format(13, 1)}
	for _, offset := range []int{0, 1, -5, 9} {
		exact := false
		for _, probes := range [][2]time.Time{
			{at(2031, 11, 23, 13, 14, 15, offset), at(2026, 2, 3, 4, 5, 6, offset)},
			{at(2031, 11, 23, 13, 14, 0, offset), at(2026, 2, 3, 4, 5, 0, offset)},
			{at(2031, 11, 23, 13, 0, 0, offset), at(2026, 2, 3, 4, 0, 0, offset)},
			{at(2031, 11, 23, 0, 0, 0, offset), at(2026, 2, 3, 0, 0, 0, offset)},
		} {
			exact = exact || l.keeps(probes[0]) && l.keeps(probes[1])
		}
		if !exact && l.zoned && strings.Contains(text, "MST") {
			return l, errors.New("--time-format has a zone name (MST): names are ambiguous, and unknown ones would be read as UTC. Use " +
				"times with an offset (-07:00 or Z07:00), or times without a zone and --time-zone")
		}
		if !exact {
			return l, errLayout
		}
	}
	return l, nil
}

// keeps reports whether an instant is the same after it is formatted and parsed.
func (l *layout) keeps(t time.Time) bool {
	zone := t.Location()
	if l.zoned {
		zone = time.UTC
	}
	parsed, err := time.ParseInLocation(l.text, t.Format(l.text), zone)
	return err == nil && parsed.Equal(t)
}

// onlyElements refuses a layout in which something is set twice, or with text that may be a zone or a number: Go would skip it.
func onlyElements(text string) error {
	rest, seen := text, map[string]bool{}
	for _, e := range elements {
		for _, groups := range e.pattern.FindAllStringSubmatch(rest, -1) {
			found := groups[len(groups)-1]
			if seen[e.field] {
				return fmt.Errorf("--time-format %q has two elements for the %s, the second one is %q; an offset is written Z07:00 or "+
					"-07:00 (%%z)", text, e.field, found)
			}
			seen[e.field] = true
			rest = strings.Replace(rest, found, " ", 1)
		}
	}
	for _, word := range strings.Fields(rest) {
		if word = strings.Trim(word, "-/.,:;()[]'_"); word != "" && !strings.Contains("T h m s", word) {
			return fmt.Errorf("--time-format %q has the text %q, which would be read over: if it is a zone, write its offset as Z07:00 "+
				"or -07:00 (%%z), or leave it out of the times and give --time-zone", text, word)
		}
	}
	return nil
}
