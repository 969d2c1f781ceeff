package projections

// KeptStatements are those that sessions which keep their plans run for each batch.
func KeptStatements() map[string]string {
	return map[string]string{
		"lock checkpoints": lockCheckpoints, "move checkpoints": moveCheckpoints, "find what is behind": findBehind,
		"histories": readHistories, "usage": upsertUsage, "entitlements": addUsed, "grants' feed": readGrantFeed,
	}
}

// Places are all that read where a list, or the log, is gone on with.
func Places() map[string]func(string) error {
	return map[string]func(string) error{
		"figures":          func(s string) error { _, err := parseAggregateCursor(s); return err },
		"figures as known": func(s string) error { _, _, err := parseAsOfCursor(s); return err },
		"dead letters":     func(s string) error { _, err := parseDeadLetterCursor(s); return err },
		"groups":           func(s string) error { _, _, err := parseGroupCursor(s); return err },
		"differences":      func(s string) error { _, err := parseDiffCursor(s); return err },
		"their events":     func(s string) error { _, err := parseAfter(s); return err },
		"explanation":      func(s string) error { _, _, err := parseExplainPlace(s); return err },
		"the log":          func(s string) error { _, err := ParseFrontier(s); return err },
		"a stream":         func(s string) error { _, err := ParseStream(s); return err },
		"subjects":         func(s string) error { _, err := SubjectsOf(s); return err },
		"an event":         func(s string) error { _, err := ParseEventRef(s); return err },
	}
}
