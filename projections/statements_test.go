package projections_test

import (
	"maps"

	"github.com/meterplex/meterplex/projections"
)

// KeptStatements are those that sessions which keep their plans run for each batch.
func KeptStatements() map[string]string {
	all := map[string]string{}
	for _, some := range []map[string]string{projections.ConsumeStatements(), projections.ValidateStatements(), projections.UsageStatements(), projections.EntitlementStatements()} {
		maps.Copy(all, some)
	}
	return all
}

// Places are all that read where a list, or the log, is gone on with.
func Places() map[string]func(string) error {
	return map[string]func(string) error{
		"figures":          func(s string) error { _, err := projections.ParseAggregateCursor(s); return err },
		"figures as known": func(s string) error { _, _, err := projections.ParseAsOfCursor(s); return err },
		"dead letters":     func(s string) error { _, err := projections.ParseDeadLetterCursor(s); return err },
		"groups":           func(s string) error { _, _, err := projections.ParseGroupCursor(s); return err },
		"differences":      func(s string) error { _, err := projections.ParseDiffCursor(s); return err },
		"their events":     func(s string) error { _, err := projections.ParseEventCursor(s); return err },
		"explanation":      func(s string) error { _, _, err := projections.ParseExplainCursor(s); return err },
		"the log":          func(s string) error { _, err := projections.ParseFrontier(s); return err },
		"a stream":         func(s string) error { _, err := projections.ParseStream(s); return err },
		"subjects":         func(s string) error { _, err := projections.SubjectsOf(s); return err },
		"an event":         func(s string) error { _, err := projections.ParseEventRef(s); return err },
	}
}
