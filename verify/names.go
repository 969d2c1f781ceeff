package verify

// The service's frozen names and numbers, written down once more: no value here comes from the service's own code.

// Topics by number. Usage commands are written by outside producers and carry no events of the log.
var topicNames = map[int16]string{
	1: "usage.raw", 2: "usage.validated", 3: "usage.dead-letter", 4: "usage.duplicates", 5: "meterplex.commands",
	6: "meterplex.catalogue", 7: "meterplex.billing", 8: "meterplex.notifications", 10: "usage.reservations",
}

// Consumers by their checkpoints' names. Those with a topic read it, the others the log.
const (
	validator    = "meterplex-usage-validator"
	aggregator   = "meterplex-usage-aggregator"
	letterReader = "meterplex-dead-letter-handler"
	commandsOf   = "meterplex-command-handler"
	refusalsOf   = "meterplex-usage-refusals"
	entitlements = "meterplex-entitlement-reads"
	series       = "meterplex-usage-series"
)

var topicRead = map[string]int16{validator: 1, aggregator: 2, letterReader: 3, refusalsOf: 4, commandsOf: 5}

// Stages and states of dead letters.
const (
	stageIngestion  = "INGESTION"
	stagePublishing = "PUBLISHING"
	stageValidation = "VALIDATION"
	stateFailed     = "FAILED"
	stateRetrying   = "RETRYING"
	stateDiscarded  = "DISCARDED"
)

// topicOf is the topic of each subject's events.
var topicOf = bySubject(map[int16][]int16{
	1: {1, 6, 8, 9, 19}, 2: {2, 12}, 3: {3, 4, 7, 10, 11, 14, 15, 16}, 4: {5, 20}, 5: {13, 17, 40, 50, 51, 52},
	6: {30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 66}, 7: {41, 42, 43, 44, 45, 46, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81}, 8: {65, 67},
	10: {60, 61, 62, 63, 64},
})

func bySubject(subjects map[int16][]int16) map[int16]int16 {
	topics := map[int16]int16{}
	for topic, all := range subjects {
		for _, subject := range all {
			topics[subject] = topic
		}
	}
	return topics
}
