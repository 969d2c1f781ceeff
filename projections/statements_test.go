package projections_test

import (
	"maps"

	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/series"
	"github.com/meterplex/meterplex/projections/usage"
	"github.com/meterplex/meterplex/projections/validate"
)

// KeptStatements are those that sessions which keep their plans run for each batch.
func KeptStatements() map[string]string {
	all := map[string]string{}
	for _, some := range []map[string]string{consume.Statements(), validate.Statements(), usage.Statements(), entitlements.Statements(), series.Statements()} {
		maps.Copy(all, some)
	}
	return all
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
