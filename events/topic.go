package events

import "time"

// Topic is the number of a topic in the log's rows and head rows. Numbers are
// frozen; the head row keeps the last position of each in an array indexed by it.
type Topic int16

// The topics, in the order of their numbers.
const (
	TopicUsageRaw        Topic = 1
	TopicUsageValidated  Topic = 2
	TopicUsageDeadLetter Topic = 3
	TopicUsageDuplicates Topic = 4
	TopicCommands        Topic = 5
	TopicCatalogue       Topic = 6
	TopicBilling         Topic = 7
	TopicNotifications   Topic = 8
	TopicUsageCommands   Topic = 9
	TopicReservations    Topic = 10
)

// TopicCount is one more than the greatest topic number.
const TopicCount = 11

// TopicInfo is a row of the registry. Every topic has Partitions partitions, is
// keyed by tenant id, has the retention TopicRetention, and is written by the relay
// only. The exception is TopicUsageCommands: outside producers write it, and it
// carries no events of the log.
type TopicInfo struct {
	Topic    Topic
	Name     string
	Consumer string // the service's consumer group, "" if only outside readers consume it
	LowRate  bool   // read through watermill-kafka, one record at a time
	Carries  string
}

// TopicRetention is the time that the broker keeps records. The log can publish
// expired records again.
const TopicRetention = 7 * 24 * time.Hour

// Consumer groups; checkpoints have the same names.
const (
	GroupValidator  = "meterplex-usage-validator"
	GroupAggregator = "meterplex-usage-aggregator"
	GroupDeadLetter = "meterplex-dead-letter-handler"
	GroupCommands   = "meterplex-command-handler"
	// GroupEntitlements reads the log itself, not a topic.
	GroupEntitlements = "meterplex-entitlement-reads"
	// GroupSeries reads the log itself, not a topic.
	GroupSeries   = "meterplex-usage-series"
	GroupRefusals = "meterplex-usage-refusals"
	// GroupUsageCommands has no checkpoint, because its topic carries no log events.
	GroupUsageCommands = "meterplex-usage-commands"
)

var topics = [...]TopicInfo{
	{TopicUsageRaw, "usage.raw", GroupValidator, false, "recorded usage, for the validator"},
	{TopicUsageValidated, "usage.validated", GroupAggregator, false, "validated usage, for the aggregator"},
	{TopicUsageDeadLetter, "usage.dead-letter", GroupDeadLetter, false, "rejections, conflicts, failures and the states of dead letters"},
	{TopicUsageDuplicates, "usage.duplicates", GroupRefusals, false, "coalesced retries and refusals"},
	{TopicCommands, "meterplex.commands", GroupCommands, true, "accepted commands (202) that the command router executes"},
	{TopicCatalogue, "meterplex.catalogue", "", true, "tenants, keys, features, plans, subscriptions"},
	{TopicBilling, "meterplex.billing", "", true, "rebuilds, periods, adjustments, Stripe deliveries"},
	{TopicNotifications, "meterplex.notifications", "", true, "thresholds and deliveries"},
	{TopicUsageCommands, "usage.commands", GroupUsageCommands, false, "usage events from external producers"},
	{TopicReservations, "usage.reservations", "", false, "reservations of amounts, for outside readers"},
}

// Topics lists the registry in the order of the numbers.
func Topics() []TopicInfo { return topics[:] }

// Name is the topic's name on the broker, without the deployment's prefix.
func (t Topic) Name() string {
	if t < 1 || int(t) > len(topics) {
		return ""
	}
	return topics[t-1].Name
}

// LowRate reports whether the topic carries few records; see TopicInfo.
func (t Topic) LowRate() bool { return t >= 1 && int(t) <= len(topics) && topics[t-1].LowRate }

// TopicOf finds a topic by its name.
func TopicOf(name string) (Topic, bool) {
	for i := range topics {
		if topics[i].Name == name {
			return topics[i].Topic, true
		}
	}
	return 0, false
}

// Outside reports whether outside producers write the topic: its records are not
// events of the log.
func (t Topic) Outside() bool { return t == TopicUsageCommands }
