package domain

import (
	"regexp"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseTime(t *testing.T) {
	for in, want := range map[string]string{
		"2026-05-01T12:00:00Z":                "2026-05-01T12:00:00Z",
		"2026-05-01T12:00:00.1Z":              "2026-05-01T12:00:00.1Z",
		"2026-05-01T12:00:00.000000Z":         "2026-05-01T12:00:00Z",
		"2026-05-01T12:00:00.120000Z":         "2026-05-01T12:00:00.12Z",
		"2026-05-01T12:00:00.000001Z":         "2026-05-01T12:00:00.000001Z",
		"2026-05-31T23:59:59.999999999Z":      "2026-05-31T23:59:59.999999Z", // cut: rounding up would bill the next month
		"2026-05-31T23:59:59.9999995Z":        "2026-05-31T23:59:59.999999Z",
		"2026-05-01T00:00:00.0000009Z":        "2026-05-01T00:00:00Z",
		"2026-05-01T01:30:00+02:00":           "2026-04-30T23:30:00Z",
		"2026-05-01T01:30:00-00:00":           "2026-05-01T01:30:00Z",
		"2026-05-01T00:00:00+23:59":           "2026-04-30T00:01:00Z",
		"2026-05-01T00:00:00-23:59":           "2026-05-01T23:59:00Z",
		"2024-02-29T00:00:00Z":                "2024-02-29T00:00:00Z",
		"2000-02-29T00:00:00Z":                "2000-02-29T00:00:00Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00Z",
		"0000-12-31T23:30:00-01:00":           "0001-01-01T00:30:00Z",
		"9999-12-31T23:59:59.999999999Z":      "9999-12-31T23:59:59.999999Z",
		"1969-12-31T23:59:59.999999999+00:00": "1969-12-31T23:59:59.999999Z",
	} {
		got, fault := ParseTime(in)
		if fault != nil || FormatTime(got) != want {
			t.Errorf("%s: %v, %v, want %s", in, got, fault, want)
		}
	}
	for _, in := range []string{
		"", "2026-05-01", "2026-05-01T12:00:00", "2026-05-01T12:00Z", "2026-05-01 12:00:00Z", "2026-05-01t12:00:00Z",
		"2026-05-01T12:00:00z",
		"2026-05-01T12:00:00,5Z", "2026-05-01T12:00:00.Z", "2026-05-01T12:00:00.1234567890Z", "2026-05-01T12:00:60Z",
		"2026-06-30T23:59:60Z", "2026-05-01T24:00:00Z",
		"2026-05-01T12:60:00Z", "2026-02-30T00:00:00Z", "2026-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2026-04-31T00:00:00Z",
		"2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z",
		"2026-01-00T00:00:00Z", "2026-05-01T12:00:00+24:00", "2026-05-01T12:00:00+12:60", "2026-05-01T12:00:00+0200",
		"2026-05-01T12:00:00+02", "2026-05-01T12:00:00+2:00",
		"2026-05-01T12:00:00ZZ", "2026-05-01T12:00:00Z ", " 2026-05-01T12:00:00Z", "2026-05-01T12:00:00 Z", "2026-05-01T12:00:00UTC",
		"2026-05-01T12:00:00+02:00[Europe/Berlin]",
		"10000-01-01T00:00:00Z", "+2026-05-01T12:00:00Z", "-2026-05-01T12:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01",
		"9999-12-31T23:59:59-00:01",
		"1777636800", "1777636800000", "20260501T120000Z", "2026-121T12:00:00Z", "2026-5-1T12:00:00Z", "２026-05-01T12:00:00Z",
		"2026-05-01T12:00:00\u2212" + "02:00",
		"2026/05/01T12:00:00Z", "2026-05-01T12.00.00Z", "2026-05-01T1a:00:00Z", "2026-05-01T12:00:00*02:00", "2026-05-01T12:00:00+-2:00",
		"Fri, 01 May 2026 12:00:00 GMT",
	} {
		if got, fault := ParseTime(in); fault == nil || fault.Code != "timestamp_invalid" {
			t.Errorf("%q: %v, %v, want timestamp_invalid", in, got, fault)
		}
	}
}

func TestTimeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micros := rapid.Int64Range(-62135596800e6, 253402300799_999_999).Draw(t, "micros")
		want := time.UnixMicro(micros).UTC()
		got, fault := ParseTime(FormatTime(want))
		if fault != nil || got != want {
			t.Fatalf("%v: %v, %v", want, got, fault)
		}
		if FormatTime(want) != want.Format(time.RFC3339Nano) {
			t.Fatalf("%s, want %s", FormatTime(want), want.Format(time.RFC3339Nano))
		}
	})
}

// strictTime matches the form that ParseTime accepts; time.Parse checks the values.
var strictTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{
		"2026-05-01T12:00:00Z", "2026-05-31T23:59:59.999999999+23:59", "0000-12-31T23:30:00-01:00", "2026-02-29T00:00:00Z",
		"2026-05-01T12:00:60,5z", "9999-12-31T23:59:59-00:01",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := time.Parse(time.RFC3339Nano, s)
		want = want.UTC()
		good := err == nil && strictTime.MatchString(s) && want.Year() >= 1 && want.Year() <= 9999
		got, fault := ParseTime(s)
		if good != (fault == nil) {
			t.Fatalf("%q: %v, time.Parse says %v %v", s, fault, want, err)
		}
		if good && !got.Equal(want.Truncate(time.Microsecond)) {
			t.Fatalf("%q: %v, want %v", s, got, want)
		}
		if again, fault := ParseTime(FormatTime(got)); good && (fault != nil || again != got) {
			t.Fatalf("%q: %s is %v, %v", s, FormatTime(got), again, fault)
		}
	})
}
