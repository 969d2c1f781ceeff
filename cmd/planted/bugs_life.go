package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// ghosts is the promise about records of lost events.
const ghosts = "P5: a record of lost events changes no figure"

// serverLifeBugs are in the detection of a server that was restarted, promoted or set back.
func serverLifeBugs() []bug {
	const lives, epoch = "migrations/0013_server_lives.sql", "infra/postgres/eventlog/epoch.go"
	const raisedFirst = "TestP2_EveryAppendInAnotherLifeOfTheServerRaisesTheEpochFirst"
	return []bug{
		{
			name: "epoch-at-start-only", what: "the epoch is compared with the server only when an instance starts",
			promise: ghosts,
			edits: []overlay.Edit{edit("infra/postgres/eventlog/heads.go", `		if !h.living {`, `		if h == nil {`),
				edit(epoch, `		case <-ticker.C:
		case <-l.newLife:
		}`, `		}`)},
			pkg: "./infra/postgres/store", run: raisedFirst, says: `do not rise`,
		},
		{
			name: "start-time-ignored", what: "a server of the same timeline counts as the same life, even after a restart",
			promise: ghosts,
			edits: []overlay.Edit{edit(lives, `SELECT started_at IS NOT DISTINCT FROM pg_postmaster_start_time()
     AND timeline`, `SELECT timeline`),
				edit(epoch, ` WHERE (h.system_identifier, h.timeline, h.started_at) IS DISTINCT FROM (s.system_identifier, s.timeline, s.started_at)
 ORDER BY`, ` WHERE (h.system_identifier, h.timeline) IS DISTINCT FROM (s.system_identifier, s.timeline)
 ORDER BY`)},
			pkg: "./infra/postgres/store", run: raisedFirst, says: `do not rise`,
		},
		{
			name: "lookup-before-commit", what: "a duplicate is answered without waiting until its original is on the standby",
			promise: "P1: an answer is given only after the events behind it are durable",
			edits:   []overlay.Edit{edit(writer, `len(g.rows) == 0 && g.isDurable(hs)`, `len(g.rows) == 0`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP1_DuplicatesOfAnotherInstanceAreAnsweredAfterACommit",
			says: `the transaction that locked the head was aborted, want committed`,
		},
		{
			name: "leases-outlive-a-life", what: "a raised epoch leaves the relay's leases as they are",
			promise: "P10: the topics have the order of the log",
			edits:   []overlay.Edit{edit(epoch, `SET owner = NULL, lease_until = '-infinity', fence = greatest(c.fence + 1, s.epoch::bigint << 24),`, `SET`)},
			pkg:     "./infra/postgres/store", run: raisedFirst, says: `the lease has fence`,
		},
	}
}

// ghostBugs let records of lost events, or cursors that the database no longer has, take effect.
func ghostBugs() []bug {
	const holding, proof = "infra/relay/holding.go", "projections/consume/proof.go"
	return []bug{
		{
			name: "cursor-ahead-kept", what: "the relay keeps a cursor that the database no longer has",
			promise: "P3: recorded events are published",
			edits:   []overlay.Edit{edit(holding, ` && k.after >= s.after`, ``)},
			pkg:     "./infra/relay", run: "TestP3_AHoldingThatTheDatabaseDoesNotConfirmIsDropped",
			says: `renewed at a cursor behind: the partition is kept true`,
		},
		{
			name: "head-never-goes-back", what: "the relay keeps the greatest head that it saw",
			promise: "P3: recorded events are published",
			edits:   []overlay.Edit{edit(holding, `		p.head, p.sameLife = head, sameLife`, `		p.head, p.sameLife = max(p.head, head), sameLife`)},
			pkg:     "./infra/relay", run: "TestP3_AHoldingThatTheDatabaseDoesNotConfirmIsDropped",
			says: `a head that went back to 52: chosen up to 100`,
		},
		{
			name: "cursor-moves-in-another-life", what: "a batch that was read before a failover moves the restored cursor",
			promise: "P3: recorded events are published",
			edits:   []overlay.Edit{edit("infra/relay/cursor.go", ` AND h.position >= s.becomes AND is_server_life(h.timeline, h.started_at)`, ``)},
			pkg:     "./infra/simulation", run: "TestP2_SimulatedFaultsLoseAndDoubleNothing",
			says: `the cursor of partition \d+ passed \d+, which the log has not`,
		},
		{
			name: "other-log-folded", what: "a record of another database's log counts as one of this log",
			promise: "P2: a record counts only in its own log",
			edits:   []overlay.Edit{edit(runner, `place.Log != r.Log.ID() &&`, `false && place.Log != r.Log.ID() &&`)},
			pkg:     "./projections", run: "TestRecordsThatAreNotOfThisLog/another_log's",
			says: `^applied`,
		},
		{
			name: "record-not-proved", what: "a record is not compared with the log's event at its position",
			promise: ghosts,
			edits:   []overlay.Edit{edit(proof, `doubted[n].ghost = true`, `doubted[n].ghost = false`)},
			pkg:     "./projections", run: "TestP2_ARecordProvesItselfInAnotherLifeOfTheServer",
			says: `^applied`,
		},
	}
}
