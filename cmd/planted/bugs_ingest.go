package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

const ingestUsage = "commands/usage.go"

// ingestBugs are in the decoding and the policy of an event, and in its memory.
func ingestBugs() []bug {
	return []bug{
		{
			name: "amount-beyond-doubles", what: "amounts above 2^53 are accepted",
			promise: "an amount means the same to every reader",
			edits:   []overlay.Edit{edit("domain/usage_event.go", ` || n < 1 || n > MaxAmount {`, ` || n < 1 {`)},
			pkg:     "./domain", run: "TestDecodeElement",
			says: `<nil>, want amount_invalid at`,
		},
		{
			name: "offset-the-wrong-way", what: "a time's offset from UTC is added, not subtracted",
			promise: "usage is counted in the period of its timestamp",
			edits:   []overlay.Edit{edit("domain/time.go", `second-offset, nanos`, `second+offset, nanos`)},
			pkg:     "./domain", run: "TestParseTime",
			says: `[+-]\d\d:\d\d: .* want`,
		},
		{
			name: "window-without-its-end", what: "usage exactly at the oldest allowed time is refused",
			promise: "usage is counted while it is allowed",
			edits:   []overlay.Edit{edit("domain/time.go", `ts.Before(now.Add(-behind)) {`, `!ts.After(now.Add(-behind)) {`)},
			pkg:     "./domain", run: "TestCheckWindow",
			says: `timestamp_too_old.* want ""`,
		},
		{
			name: "cached-no-is-final", what: "a cached history refuses usage without a check of the tables",
			promise: "a change holds once it is answered",
			edits:   []overlay.Edit{edit(ingestUsage, `if refusal == nil || p.fresh {`, `if refusal == nil || p.loaded {`)},
			pkg:     "./commands", run: "TestIngestConfirmsOnlyCachedRejections",
			says: `^a cached no that is wrong by now: `,
		},
		{
			name: "room-not-cleared", what: "an event reuses the memory of an earlier batch, and unset members stay, such as the refusal of another message",
			promise: "P2: a batch is stored as it was sent; P9: tenants never meet",
			edits: []overlay.Edit{edit(ingestUsage, `		submitted, index = append(submitted, Submitted{ProbeOnly: refusal != nil}), append(index, i)
		s := &submitted[len(submitted)-1]
`, `		submitted, index = submitted[:len(submitted)+1], append(index, i)
		s := &submitted[len(submitted)-1]
		s.ProbeOnly = refusal != nil
`)},
			pkg: "./commands", run: "TestP2_EventsOfABatchAreItsOwn",
			says: `is stored as`,
		},
	}
}

// sharedBugs mix up the data of two events, messages or bodies.
func sharedBugs() []bug {
	return []bug{
		{
			name: "message-of-its-key", what: "a message's tenant is taken from its key before its header",
			promise: "P9: usage is counted for its tenant",
			edits: []overlay.Edit{edit("commands/usage_messages.go", `	m.tenant = string(r.Header(events.HeaderTenant))
	if m.tenant == "" {
		m.tenant = string(r.Key)
	}
`, `	m.tenant = string(r.Key)
	if m.tenant == "" {
		m.tenant = string(r.Header(events.HeaderTenant))
	}
`)},
			pkg: "./commands", run: "TestMessagesOfUsage",
			says: `^0 taken, refused .*tenant_not_found`,
		},
		{
			name: "heir-that-is-not-stored", what: "an event refused within a group counts as the first of its key: the next one is a duplicate of an event that is not stored",
			promise: "P2: an event answered duplicate is stored",
			edits: []overlay.Edit{edit(group, "			*m.placement = commands.Placement{Status: commands.Refused, Position: r.position}\n			g.skipUnstored(i)\n",
				"			*m.placement = commands.Placement{Status: commands.Refused, Position: r.position}\n")},
			pkg: "./infra/postgres/eventlog", run: "TestP2_RefusedMessagesStayRefused",
			says: `^round \d+, delivery \d+ of .*: status \d`,
		},
		{
			name: "id-shares-the-body", what: "an eventId is a piece of the request's body, which the next request is read into",
			promise: "P1: an acknowledged event is in the log as it was sent",
			edits: []overlay.Edit{
				edit("domain/usage_batch.go", "	\"strings\"\n", "	\"strings\"\n	\"unsafe\"\n"),
				edit("domain/usage_batch.go", "	if d.ids.Cap()-d.ids.Len() < len(id) {", "	if len(id) > 0 {\n		return unsafe.String(&id[0], len(id))\n	}\n	if d.ids.Cap()-d.ids.Len() < len(id) {"),
			},
			pkg: "./domain", run: "FuzzDecodeBatch",
			says: `what is decoded shares the body's memory`,
		},
		{
			name: "source-shares-the-body", what: "a CloudEvent's source is a piece of the request's body, which the next request is read into",
			promise: "P1: an acknowledged event is in the log as it was sent",
			edits: []overlay.Edit{
				edit("domain/cloudevents.go", "	\"strings\"\n", "	\"strings\"\n	\"unsafe\"\n"),
				edit("domain/cloudevents.go", `in.source = string(e.source.chars)`, `in.source = unsafe.String(unsafe.SliceData(e.source.chars), len(e.source.chars))`),
			},
			pkg: "./domain", run: "FuzzCloudEvent",
			says: `what is decoded shares the body's memory`,
		},
	}
}

// memoryBugs are in ids, and in reused memory.
func memoryBugs() []bug {
	const ids, body, buffer = "cmd/meterplex/node/ids.go", "http/body/body.go", "http/buffer/buffer.go"
	return []bug{
		{
			name: "ids-of-the-moment", what: "the random part of an id follows from the millisecond: two events of one millisecond have the same id",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed", elsewhere: true,
			edits: []overlay.Edit{edit(ids, `1<<63|rand.Uint64()>>2`, `1<<63|rand.New(rand.NewPCG(uint64(now.UnixMilli()), 1)).Uint64()>>2`)},
			pkg:   "./cmd/meterplex/node", run: "TestIDs",
			says: `: version 7, RFC4122, at`,
		},
		{
			name: "ids-in-no-order", what: "ids of one millisecond are not ordered",
			promise: "lists in the order of ids are in the order of time",
			edits: []overlay.Edit{
				edit(ids, "	fraction := uint64(now.Nanosecond()) % 1e6 << 12 / 1e6\n", "	fraction := rand.Uint64() >> 52\n"),
			},
			pkg: "./cmd/meterplex/node", run: "TestIDs",
			says: ` is not after `,
		},
		{
			name: "hash-of-any-rules", what: "the hash of recorded usage is omitted for every canonical form",
			promise: "P4: the same id with another payload is reported",
			edits:   []overlay.Edit{edit("events/codec/stored.go", `p.Subject == events.UsageRecorded && p.Canonical == 1 {`, `p.Subject == events.UsageRecorded && p.Canonical > 0 {`)},
			pkg:     "./events/codec", run: "TestHashesOfTheFirstVersionAreNotKept",
			says: `^another version:`,
		},
		{
			name: "buffers-of-any-size", what: "a buffer of any size is pooled with those of the power of two below it",
			promise: "no request takes more memory than its limit",
			edits:   []overlay.Edit{edit(buffer, ` || size > MaxPooled || size&(size-1) != 0 {`, ` || size > MaxPooled {`)},
			pkg:     "./http/buffer", run: "TestBuffersAreKeptBySize",
			says: `^a buffer of \d+ bytes is kept, in pool`,
		},
		{
			name: "buffer-with-what-was-in-it", what: "a body begins with the former content of its buffer",
			promise: "P9: tenants never meet",
			edits:   []overlay.Edit{edit(buffer, `return (*kept)[:0]`, `return *kept`)},
			pkg:     "./http/body", run: "TestBodiesAreReadIntoUsedBuffers",
			says: `bytes, told -?\d+: \d+, <nil>`,
		},
		{
			name: "grown-without-what-was-read", what: "the bytes read before a body's buffer grew are lost",
			promise: "P1: an acknowledged event is in the log as it was sent",
			edits: []overlay.Edit{edit(body, "			larger := append(buffer.Get(2*cap(body)), body...)\n",
				"			larger := buffer.Get(2 * cap(body))\n			copy(larger, body)\n")},
			pkg: "./http/body", run: "TestBodiesAreReadIntoUsedBuffers",
			says: `bytes, told -?\d+: \d+, <nil>`,
		},
	}
}
