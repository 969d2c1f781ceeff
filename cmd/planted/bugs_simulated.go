package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// simulatedBugs are bugs that the simulation has to find with its random faults, without
// a test made for them.
func simulatedBugs() []bug {
	const cursor = "infra/relay/cursor.go"
	list := []bug{
		{
			name: "simulated-zombie", what: "a relay that lost its lease still moves the cursor",
			promise: "P2: one live relay for each partition",
			edits: []overlay.Edit{
				edit(cursor, ` WHERE c.fence = s.fence AND c.position = s.was AND`, ` WHERE c.position = s.was AND`),
				edit(cursor, `WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.position = mine.was RETURNING`, `WHERE c.partition = mine.partition AND c.position = mine.was RETURNING`),
			},
			says: `a relay without the lease moved the cursor`,
		},
		{
			name: "simulated-gap-passed", what: "a consumer accepts the next higher position, whatever lies between",
			promise: "P3: a gap in the records is read from the log",
			edits:   []overlay.Edit{edit(catchup, `it.place.Previous == l.last && (`, `it.place.Previous >= l.last && (`)},
			says:    `a transaction passed .* and holds`,
		},
		{
			name: "simulated-swap", what: "the relay publishes the last two records of a batch in the wrong order",
			promise: "P10: a tenant's events are published in log order",
			edits: []overlay.Edit{edit("infra/relay/carry.go", `	err = watermill.Topics{`, `	if n := len(records); n > 1 {
		records[n-1], records[n-2] = records[n-2], records[n-1]
	}
	err = watermill.Topics{`)},
			says: `was published to .* before`,
		},
		{
			name: "simulated-heads", what: "an append that starts over keeps the positions of its first attempt",
			promise: "positions are dense, so that a gap is a loss",
			edits:   keepsPositions(),
			says:    `the head of partition \d+ says .*; the log says|was appended behind`,
		},
		{
			name: "simulated-redelivery", what: "a record is folded without a duplicate check",
			promise: "P2: whatever is delivered again counts once",
			edits:   foldsUnchecked(),
			says:    `a transaction passed .* and holds`,
		},
		{
			name: "simulated-unknown-commit", what: "a COMMIT without an answer counts as done",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed",
			edits:   []overlay.Edit{edit("infra/postgres/db.go", `	return fmt.Errorf("%w: %v", ErrCommitUnknown, err)`, `	return nil`)},
			says:    `is in the log false`,
		},
	}
	list = append(list, simulatedChangeBugs()...)
	list = append(list, messageBugs()...)
	for i := range list {
		list[i].pkg, list[i].run = "./infra/simulation", "TestP2_SimulatedFaultsLoseAndDoubleNothing"
	}
	return list
}

// messageBugs are in the ingest of messages.
func messageBugs() []bug {
	return []bug{
		{
			name: "simulated-message-acked", what: "a message is acknowledged although the log was unavailable",
			promise: "P1, P3: an acknowledged message is committed",
			edits: []overlay.Edit{edit("commands/usage_commands.go", `	wait.Wait()
	return errors.Join(errs...)
`, `	wait.Wait()
	if err := errors.Join(errs...); !errors.Is(err, ErrUnavailable) {
		return err
	}
	return nil
`)},
			says: `: message .* is in the log false, and refused there false`,
		},
	}
}
