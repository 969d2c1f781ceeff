package projections_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
)

// awkwardPlaces returns valid and invalid places in lists and in the log.
func awkwardPlaces() []string {
	const id = "01900000-0000-7000-8000-00000000000a"
	return []string{"", "17-4711", "1-1,2-2", "32-1", "1-1,1-2", "1-01", "0-9223372036854775807", "9223372036854775808", "-1", "5/abc", "5/\x00", "-5/", "5", id, "{" + id + "}", id + "|calls|2026-05|" + id,
		"1|2026-05|calls|" + id, "1|2|2026-05|calls|" + id, "live|1|2|3|4|5|6|7|true", "then|1|2|3|-99999999999999999999999999|5|0|0|false", "live|1|2|3|4|5", "live|1|2|3|0x10|5", "usage/e1", "usage/", "usage/a\x00", "feature/\xff", "tenant/" + id,
		"meterplex.usage", "meterplex.usage.", ".", "a|b|c|d|e|f", strings.Repeat("1-1,", 40)}
}

// FuzzPlaces: every accepted place in a list or in the log is valid in a database
// query; any other is refused with its own error.
func FuzzPlaces(f *testing.F) {
	for _, s := range awkwardPlaces() {
		f.Add(s)
	}
	places := Places()
	f.Fuzz(func(t *testing.T, s string) {
		for name, take := range places {
			switch err := take(s); {
			case err == nil && (!utf8.ValidString(s) || strings.ContainsRune(s, 0)):
				t.Fatalf("%s takes %q", name, s)
			case err != nil && !errors.Is(err, query.ErrCursorInvalid) && !errors.Is(err, query.ErrPositionInvalid) && !errors.Is(err, audit.ErrStreamInvalid) &&
				!errors.Is(err, query.ErrNotFound) && !errors.Is(err, audit.ErrSubjectUnknown):
				t.Fatalf("%s: %q: %v", name, s, err)
			}
		}
		if f, err := audit.ParseFrontier(s); err == nil {
			if again, err := audit.ParseFrontier(f.String()); err != nil || again != f {
				t.Fatalf("%q is %s, and that is %s, %v", s, f, again, err)
			}
		}
		if st, err := audit.ParseStream(s); err == nil && st.Kind+"/"+st.ID != s {
			t.Fatalf("%q is %+v", s, st)
		}
	})
}

// Places returns all parsers of cursors of lists and of the log.
func Places() map[string]func(string) error {
	return map[string]func(string) error{
		"figures":          func(s string) error { _, err := usage.ParseCursor(s); return err },
		"figures of all":   func(s string) error { _, err := usage.ParsePeriodCursor(s); return err },
		"figures as known": func(s string) error { _, _, err := usage.ParseAsOfCursor(s); return err },
		"dead letters":     func(s string) error { _, err := deadletters.ParseCursor(s); return err },
		"groups":           func(s string) error { _, _, err := deadletters.ParseGroupCursor(s); return err },
		"differences":      func(s string) error { _, err := rebuild.ParseCursor(s); return err },
		"their events":     func(s string) error { _, err := usage.ParseEventCursor(s); return err },
		"series":           func(s string) error { _, err := series.ParseCursor(s); return err },
		"explanation":      func(s string) error { _, _, err := usage.ParseExplainCursor(s); return err },
		"the log":          func(s string) error { _, err := audit.ParseFrontier(s); return err },
		"a stream":         func(s string) error { _, err := audit.ParseStream(s); return err },
		"subjects":         func(s string) error { _, err := audit.SubjectsOf(s); return err },
		"an event":         func(s string) error { _, err := audit.ParseEventRef(s); return err },
	}
}
