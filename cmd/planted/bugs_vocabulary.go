package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// vocabularyBugs render events with another vocabulary or residency than their own.
func vocabularyBugs() []bug {
	const origins = "infra/postgres/eventlog/origins.go"
	const same = "P2: a record that is sent again is the same record, whatever release sends it"
	return []bug{
		{
			name: "vocabulary-of-the-reader", what: "the vocabulary of the reader is used instead of the writer's",
			promise: same,
			edits: []overlay.Edit{edit(origins, `if v, ok := events.EmbeddedVocabulary(hash); ok {`,
				`if v, ok := events.EmbeddedVocabulary(events.CurrentVocabulary().Hash()); ok {`)},
			pkg: "./infra/postgres/eventlog", run: "TestP2_AnEventKeepsTheVocabularyOfItsWriter",
			says: `^rendered with the vocabulary of the reader`,
		},
		{
			name: "vocabulary-of-the-http-reader", what: "events read over HTTP are rendered with the vocabulary of the answering instance",
			promise: same,
			edits: []overlay.Edit{edit("projections/audit/envelopes.go", `if v, ok := events.EmbeddedVocabulary(hash); ok {`,
				`if v, ok := events.EmbeddedVocabulary(events.CurrentVocabulary().Hash()); ok {`)},
			pkg: "./http", run: "TestP2_EventsAreReadWithTheVocabularyOfTheirWriter",
			says: `^(list|export) to (the tenant|an operator): 200 `,
		},
		{
			name: "residency-of-the-first", what: "an origin is looked up by its actor without its residency",
			promise: "an event keeps the data residency of its recording",
			edits:   []overlay.Edit{edit(origins, ` AND vocabulary = $6 AND residency = $7`, ` AND vocabulary = $6`)},
			pkg:     "./infra/postgres/eventlog", run: "TestEventsKeepTheirResidency",
			says: `: \["eu" "eu" "eu"\], want "eu us eu"`,
		},
	}
}
