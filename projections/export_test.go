package projections

// KeptStatements are those that sessions which keep their plans run for each batch.
func KeptStatements() map[string]string {
	return map[string]string{
		"lock checkpoints": lockCheckpoints, "move checkpoints": moveCheckpoints, "find what is behind": findBehind,
		"histories": readHistories, "usage": upsertUsage, "entitlements": addUsed, "grants' feed": readGrantFeed,
	}
}
