package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// carryBugs are in how the relay handles a publish, also a failed one.
func carryBugs() []bug {
	const batch, carry = "infra/relay/batch.go", "infra/relay/carry.go"
	return []bug{
		{
			name: "relay-position-after-last", what: "the relay reads everything above its last position, and skips holes in the log",
			promise: "P3: the cursor passes only published events",
			edits: []overlay.Edit{
				edit(batch, `if e.Position.Number != p.to+1 {`, `if e.Position.Number <= p.to {`),
				edit(batch, "		p.to++\n	}\n	return records, nil", "		p.to = e.Position.Number\n	}\n	return records, nil"),
			},
			pkg: "./infra/relay", run: "TestP3_AHoleInTheLogIsNotPassed",
			says: `records up to \d+, <nil>`,
		},
		{
			name: "relay-failure-acknowledged", what: "a failed publish is logged, and the cursor moves on",
			promise: "P11: an outage of the broker loses nothing", elsewhere: true,
			edits: []overlay.Edit{edit(carry, `	failed := watermill.Failures(err, len(records))
	r.count(`, `	if err != nil {
		r.Observe.Failed(err)
	}
	err = nil
	failed := watermill.Failures(err, len(records))
	r.count(`)},
			pkg: "./infra/relay", run: "TestP11_AnOutageOfTheBrokerCostsLatencyOnly",
			says: `is not on the topic as the log has it`,
		},
		{
			name: "relay-outage-dead-letters", what: "events that could not be published during a broker outage become dead letters",
			promise: "P11: an outage of the broker costs latency only", elsewhere: true,
			edits: []overlay.Edit{
				edit("infra/watermill/publish.go", `		failed[f.Index] = f
`, `		f.Permanent = true
		failed[f.Index] = f
`),
				edit(carry, `if refused && tries >= maxTries {`, `if refused {`),
			},
			pkg: "./infra/relay", run: "TestP11_AnOutageOfTheBrokerCostsLatencyOnly",
			says: `events withheld or attempts left over`,
		},
		{
			name: "relay-past-a-failed-part", what: "the cursor passes all of a partition's records, of which the broker has only the first",
			promise: "P3: the cursor passes only published events",
			edits: []overlay.Edit{edit(batch, `	if b.results != nil && b.results[i].err != nil {
		r := &b.results[i]
		return p.positions`, `	if b.results != nil && b.results[i].err != nil && b.results[i].stored == 0 {
		r := &b.results[i]
		return p.positions`)},
			pkg: "./infra/relay", run: "TestP3_UnpublishableEventsAreWithheldInPlace",
			says: `^the cursors passed .*, which are not published`,
		},
		{
			name: "relay-close-grace", what: "a stop abandons the batch under way",
			promise: "P2: a clean stop sends no record twice",
			edits:   []overlay.Edit{edit(carry, `Grace: s.CloseGrace}`, `Grace: 0}`)},
			pkg:     "./infra/relay", run: "TestP2_AStopWaitsForTheBatchUnderWay",
			says: `records were sent twice`,
		},
	}
}

// leaseBugs are in the leases, by which one relay at a time publishes a partition.
func leaseBugs() []bug {
	return []bug{
		{
			name: "relay-without-lease", what: "a relay leases partitions that another one is publishing: its lock ended with the statement",
			promise: "P2: one live relay for each partition", elsewhere: true,
			edits: []overlay.Edit{
				edit("infra/relay/leases.go", "WHERE owner IS NULL OR lease_until < now()\n ORDER BY partition LIMIT $2", "WHERE owner IS DISTINCT FROM $1\n ORDER BY partition LIMIT $2"),
			},
			pkg: "./infra/relay", run: "TestP2_TwoRelaysShareThePartitionsAndHandThemOver",
			says: `records were sent twice`,
		},
		{
			name: "relay-without-fence", what: "a relay that lost its lease still moves the cursor",
			promise: "P2: one live relay for each partition",
			edits: []overlay.Edit{
				edit("infra/relay/cursor.go", ` WHERE c.fence = s.fence AND c.position = s.was AND`, ` WHERE c.position = s.was AND`),
				edit("infra/relay/cursor.go", `WHERE c.partition = mine.partition AND c.fence = mine.fence AND c.position = mine.was RETURNING`, `WHERE c.partition = mine.partition AND c.position = mine.was RETURNING`),
			},
			pkg: "./infra/relay", run: "TestP2_CursorMovesOnceAndOnlyUnderItsFence",
			says: `^lost map\[\], want partition`,
		},
		{
			name: "relay-fresh-lease", what: "a relay publishes under a lease that has run out",
			promise: "P2: one live relay for each partition",
			edits: []overlay.Edit{edit("infra/relay/holding.go", `&& now.Sub(p.renewed) < fresh
}`, `&& fresh > 0
}`)},
			pkg: "./infra/relay", run: "TestP2_NoRecordIsSentUnderAnUnsureLease",
			says: `a lease that was not renewed for half its time is still used`,
		},
	}
}

// pipeBugs are in the clients of the broker and in the router.
func pipeBugs() []bug {
	const produce = "infra/kafka/publish_batch_produce.go"
	return []bug{
		{
			name: "publish-not-awaited", what: "a publish returns before the broker has answered",
			promise: "P11: an outage of the broker loses nothing", elsewhere: true,
			edits: []overlay.Edit{edit(produce, `	go func() { done <- producer.client.ProduceSync(ctx, batch...) }()
`, `	go func() {
		for _, r := range batch {
			producer.client.Produce(context.WithoutCancel(ctx), r, nil)
		}
		done <- nil
	}()
`)},
			pkg: "./infra/kafka", run: "TestPublishReturnsWhileTheBrokerHangs",
			says: `a broker that hangs gave <nil>`,
		},
		{
			name: "publish-acks-one", what: "a publish is acknowledged by the leader alone",
			promise: "P11: an outage of the broker loses nothing", elsewhere: true,
			edits: []overlay.Edit{edit("infra/kafka/publish_batch.go", `		kgo.RequiredAcks(kgo.AllISRAcks()),
`, `		kgo.RequiredAcks(kgo.LeaderAck()),
		kgo.DisableIdempotentWrite(),
`)},
			pkg: "./infra/kafka", run: "TestPublishersWaitForAllReplicas",
			says: `acknowledgements asked for: .*, want those of all in-sync replicas`,
		},
		{
			name: "publish-behind-a-failure", what: "records behind a refused record are written before it is settled",
			promise: "P10: a tenant's events are published in log order",
			edits: []overlay.Edit{edit(produce, `		f.addAll(group[half:], watermill.ErrBehind)
		return false
`, `		p.resend(ctx, group[half:], f)
		return false
`)},
			pkg: "./infra/kafka", run: "TestP10_NothingIsWrittenBehindARefusedRecord",
			says: `stands behind a refused one, told was`,
		},
		{
			name: "offset-before-commit", what: "the group's offset moves before the batch is handled",
			promise: "P2, P3: an acknowledged record is committed",
			edits: []overlay.Edit{edit("infra/kafka/subscription.go", `	for len(batch) > 0 {
		switch s.delivery.Send(`, `	s.owned.mark(s.client, batch)
	for len(batch) > 0 {
		switch s.delivery.Send(`)},
			pkg: "./infra/kafka", run: "TestContract/CloseGivesUpABatchThatHangs",
			says: `a batch that was not acknowledged in time`,
		},
		{
			name: "handler-error-swallowed", what: "a handler's error is dropped and the batch acknowledged",
			promise: "P3: no event is dropped silently", elsewhere: true,
			edits: []overlay.Edit{edit("infra/watermill/router.go", "		return err\n	})\n}\n\n// Logger makes", "		return nil\n	})\n}\n\n// Logger makes")},
			pkg:   "./infra/watermill", run: "TestFailedBatchIsSentAgainUntilItSucceeds",
			says: `one of which fails twice, were handled`,
		},
		{
			name: "retry-limit", what: "a batch that failed ten times is dropped",
			promise: "P11: an outage costs latency only", elsewhere: true,
			edits: []overlay.Edit{edit("infra/watermill/settle.go", `		pause := s.failed(msg.Context(), name, err)
`, `		pause := s.failed(msg.Context(), name, err)
		if s.streaks[name] >= 10 {
			s.succeeded(name)
			return out, nil
		}
`)},
			pkg: "./infra/watermill", run: "TestALongOutageLosesNoBatch",
			says: `the batch was done with after`,
		},
	}
}
