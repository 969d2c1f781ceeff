package importer

import (
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// TestTimesAsTheyAreWritten: a text is the instant that it names, or it is refused.
func TestTimesAsTheyAreWritten(t *testing.T) {
	zones := map[string]*time.Location{}
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Skip("no zones on this machine")
		}
		zones[name[strings.LastIndex(name, "/")+1:]] = zone
	}
	for _, c := range []struct{ zone, format, in, want string }{
		{"UTC", "", "2023-11-16 18:17:03.9799609", "2023-11-16T18:17:03.97996Z"},
		{"UTC", "", "2023-11-16T18:17:03", "2023-11-16T18:17:03Z"},
		{"UTC", "", "2023-11-16T18:17:03+02:00", "2023-11-16T16:17:03Z"},
		{"UTC", "", "2023-11-16 18:17", "2023-11-16T18:17:00Z"},
		{"Berlin", "", "2023-11-16 18:17:03", "2023-11-16T17:17:03Z"},
		{"Berlin", "", "2023-11-16 18:17:03Z", "2023-11-16T18:17:03Z"},
		{"Berlin", "", "2023-11-16", "2023-11-15T23:00:00Z"},
		// PostgreSQL, BigQuery, SQL Server, Snowflake, Ruby, Go, RFC 1123
		{"Berlin", "", "2023-11-16 18:17:03+00", "2023-11-16T18:17:03Z"},
		{"Berlin", "", "2023-11-16 18:17:03.25+05:30", "2023-11-16T12:47:03.25Z"},
		{"Berlin", "", "2023-11-16 18:17:03.25 UTC", "2023-11-16T18:17:03.25Z"},
		{"Berlin", "", "2023-11-16T18:17:03+0000", "2023-11-16T18:17:03Z"},
		{"Berlin", "", "2023-11-16 18:17:03.0000000 +01:00", "2023-11-16T17:17:03Z"},
		{"Berlin", "", "2023-11-16 18:17:03.000 -0800", "2023-11-17T02:17:03Z"},
		{"Berlin", "", "2023-11-16 18:17:03.5 -0800 PST", "2023-11-17T02:17:03.5Z"},
		{"Berlin", "", "Thu, 16 Nov 2023 18:17:03 GMT", "2023-11-16T18:17:03Z"},
		{"Berlin", "", "Thu, 2 Nov 2023 18:17:03 -0500", "2023-11-02T23:17:03Z"},
		{"Berlin", "", "Fri, 16 Nov 2023 18:17:03 GMT", "is a Thursday"},
		{"UTC", "", "Thu, 16 Nov 2023 18:17:03 CET", "is not a time"},
		{"UTC", "", "2023-11-16 18:17:03,5", "is not a time"},
		{"UTC", "", "2023-02-30 00:00:00", "is not a time"},
		{"UTC", "", "11/16/2023", "--time-format"},
		{"UTC", "", "1700158623", "--time-format unix reads"},
		{"UTC", "", "1700158623979", "--time-format unix-ms reads"},
		{"UTC", "", "9999-12-31 00:00:00", "not in the years"},
		{"UTC", "", "1970-01-01 00:00:00", "not in the years"},
		{"UTC", "", "", "is not a time"},
		{"UTC", "rfc3339", "2023-11-16 18:17:03", "is not a time"},
		{"UTC", "02.01.2006 15:04", "16.11.2023 18:17", "2023-11-16T18:17:00Z"},
		{"Berlin", "2006-01-02 15:04:05.999999999 -0700 MST", "2026-05-31 21:00:00 -0800 PST", "2026-06-01T05:00:00Z"},
		{"Berlin", "%Y-%m-%d %H:%M:%S", "2023-11-16 18:17:03.5", "2023-11-16T17:17:03.5Z"},
		{"UTC", "%d/%b/%Y:%H:%M:%S %z", "16/Nov/2023:18:17:03 +0100", "2023-11-16T17:17:03Z"},
		{"UTC", "%Y-%m-%dT%H:%M:%S.%f%z", "2023-11-16T18:17:03.25+01:00", "2023-11-16T17:17:03.25Z"},
		{"UTC", "%F %T,%f", "2023-11-16 18:17:03,250", "2023-11-16T18:17:03.25Z"},
		{"UTC", "%m/%d/%Y %I:%M %p", "11/16/2023 06:17 PM", "2023-11-16T18:17:00Z"},
		// Unix times
		{"UTC", "unix", "1700158623", "2023-11-16T18:17:03Z"},
		{"UTC", "%s", "1700158623", "2023-11-16T18:17:03Z"},
		{"UTC", "unix", "1700158623.9799609", "2023-11-16T18:17:03.97996Z"},
		{"UTC", "unix-ms", "1700158623979", "2023-11-16T18:17:03.979Z"},
		{"UTC", "unix-ms", "1700158623979.25", "2023-11-16T18:17:03.97925Z"},
		{"UTC", "unix-ns", "1700158623979960123", "2023-11-16T18:17:03.97996Z"},
		{"UTC", "unix", "-1", "is not a Unix time"},
		{"UTC", "unix-ms", "1700158623", "with --time-format unix it is 2023-11-16T18:17:03Z"},
		{"UTC", "unix", "1700158623979", "with --time-format unix-ms it is 2023-11-16T18:17:03Z"},
		{"UTC", "unix-us", "1700158623979", "with --time-format unix-ms it is"},
		{"UTC", "unix-ns", "1700158623979960", "with --time-format unix-us it is"},
		// Clocks that are put forward or back
		{"Berlin", "", "2026-10-25 02:30:00", "exists twice in Europe/Berlin"},
		{"Berlin", "", "2026-10-25 01:59:59", "2026-10-24T23:59:59Z"},
		{"Berlin", "", "2026-10-25 03:00:00", "2026-10-25T02:00:00Z"},
		{"Berlin", "", "2026-10-25 02:30:00+01:00", "2026-10-25T01:30:00Z"},
		{"Berlin", "", "2026-03-29 02:30:00", "does not exist in Europe/Berlin"},
		{"Berlin", "", "2026-03-29 03:00:00", "2026-03-29T01:00:00Z"},
		{"Berlin", "", "2026-03-29 01:59:59", "2026-03-29T00:59:59Z"},
		{"Lord_Howe", "", "2026-04-05 01:45:00", "exists twice"},
		{"Lord_Howe", "", "2026-10-04 02:15:00", "does not exist"},
		{"Cairo", "", "2024-04-26 00:30:00", "does not exist"},
		{"Cairo", "", "2024-04-26", "2024-04-25T22:00:00Z"},  // midnight does not exist
		{"Havana", "", "2024-11-03", "2024-11-03T04:00:00Z"}, // midnight exists twice
		{"Havana", "", "2024-11-04", "2024-11-04T05:00:00Z"},
	} {
		clock, err := (&Mapping{TimeFormat: c.format, Zone: zones[c.zone]}).newClock()
		must.OK(t, err)
		got, err := clock.read(c.in)
		if strings.HasPrefix(c.want, "20") && (err != nil || got.Format(time.RFC3339Nano) != c.want) ||
			!strings.HasPrefix(c.want, "20") && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q as %q in %s is %v, %v; want %s", c.in, c.format, c.zone, got, err, c.want)
		}
	}
}

// TestLayoutsAreExact: a layout that would read a zone over, or that has no whole date, is refused.
func TestLayoutsAreExact(t *testing.T) {
	for format, want := range map[string]string{
		"": "", "unix-us": "", "2006-01-02": "", "20060102150405": "", "20060102T150405Z0700": "", "02.01.06 15:04": "",
		"Jan _2 2006 3:04PM": "", "2006-002": "",
		"2006-01-02 15:04:05Z07:00": "", "2006-01-02 15:04:05 -0700": "", time.RFC1123Z: "", "2006-01-02 15:04:05.999999999 -0700 MST": "",
		"2006-01-02T15:04:05-07": "",
		"2006-01-02T15h04m05s":   "", "%Y-%m-%d": "", "%d.%m.%Y %H:%M:%S.%f": "", "%Y-%m-%dT%H:%M:%S%z": "", "%-m/%-d/%y %-I:%M %p": "",
		"15:04": "year, month and day", "yesterday": `"yesterday"`, "2006-01": "year, month and day", "01-02": "year, month and day",
		"2006-01-02 03:04":     "year, month and day",
		"%Y-%m-%d %H:%M:%S %Z": "%Z is not read", "%H:%M": "year, month and day", "%Y-%m-%d UTC": `" UTC"`, "%Y-%m-%d %H:%M:%SZ": `"Z"`,
		"%Y-%f":                   "has to follow the seconds",
		"2006-01-02 15:04:05 MST": "zone name", time.RFC1123: "zone name", time.RFC850: "zone name", time.UnixDate: "zone name",
		"MST 2006-01-02":          "zone name",
		"2006-01-02 15:04:05 CET": `"CET"`, "2006-01-02T15:04:05+01:00": "two elements", "2006-01-02T15:04:05-05:00": "two elements",
		"2006-01-02T15:04Z":       `"Z"`,
		"2006-01-02 15:04:05 UTC": `"UTC"`, "2006-01-02 15:04:05 GMT": `"GMT"`, "2006-01-02 15:04:05 +00:00": `"+00:00"`,
		"2006-01-02 15:04:05+00": `"+00"`, "2006-01-02 15:04:05 +07:00": `"+07:00"`,
		"2006-01-02 15:04:05 +05:30": "two elements", "2006-01-02 15:04:05 -08": `"08"`,
		"2006-01-02 15:04:05 Europe/Berlin": `"Europe/Berlin"`, "2026-01-02": "two elements",
	} {
		_, err := (&Mapping{TimeFormat: format, Zone: time.UTC}).newClock()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %s", format, err, want)
		}
	}
}
