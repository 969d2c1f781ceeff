// Package events is the frozen vocabulary of the event log: envelope, subjects,
// topics, payloads and positions. It depends on no database, broker or
// business rule, and imports only the standard library and uuid. Package codec has their bytes.
package events

import (
	"reflect"
	"strconv"
)

// Subject is the number of an event's type and version in the log. Numbers are
// frozen: they are never reused and never renamed.
type Subject int16

// The subjects, in the order of their numbers. 18 is unused, and stays so.
const (
	UsageRecorded   Subject = 1 // a producer's usage event was accepted
	UsageValidated  Subject = 2 // the validator accepted the event
	UsageRejected   Subject = 3 // the validator rejected the event
	UsageConflicted Subject = 4 // a known eventId was sent with another payload
	DuplicatesSeen  Subject = 5 // retries of known events, coalesced by tenant and second
	UsageRetried    Subject = 6 // a rejected or withheld event goes to the validator again
	UsageRefused    Subject = 7 // a usage event from usage.commands was refused
	UsageAdmitted   Subject = 8 // usage was granted against a limit and recorded
	UsageCorrected  Subject = 9 // a correction of recorded usage was accepted

	PublishFailed     Subject = 10 // an event that could not be published even alone is withheld
	AggregationFailed Subject = 11 // a consumer could not fold an event
	Reaggregated      Subject = 12 // a validated event that failed goes to the aggregator again
	RetryRequested    Subject = 13 // a retry of a dead letter was requested
	DeadLetterRetried Subject = 14 // the retry was appended (RETRYING)
	DeadLetterClosed  Subject = 15 // a dead letter needs no further work (RESOLVED or DISCARDED)
	RetryRefused      Subject = 16 // a requested retry was not possible; holds the reason
	BulkRequested     Subject = 17 // a retry or discard of many dead letters was requested
	UsageRetracted    Subject = 19 // a retraction of recorded usage was accepted
	RefusalsSeen      Subject = 20 // usage that ingest refused, coalesced by tenant and second

	TenantCreated       Subject = 30
	TenantChanged       Subject = 31
	APIKeyCreated       Subject = 32
	APIKeyRotated       Subject = 33
	APIKeyRevoked       Subject = 34
	FeatureDefined      Subject = 35
	PlanDefined         Subject = 36
	SubscriptionCreated Subject = 37
	SubscriptionChanged Subject = 38
	PriceDefined        Subject = 39

	RebuildRequested   Subject = 40 // a rebuild of a projection, or a comparison with the log, was requested
	RebuildReady       Subject = 41 // the new generation has caught up with the live one
	RebuildPromoted    Subject = 42 // readers see the new generation
	RebuildRolledBack  Subject = 43 // readers see the previous generation again
	RebuildAbandoned   Subject = 44 // the new generation is dropped
	RebuildFailed      Subject = 45 // the new generation cannot be folded
	ProjectionVerified Subject = 46 // the live rows were compared with the log

	ReplayRequested Subject = 50 // a replay of a range, or a rewind of the consumer of usage.commands, was requested
	ReplayDone      Subject = 51 // the range is published
	Rewound         Subject = 52 // the relay's cursors or a consumer's offsets moved back, or a consumer of the log was asked to read again

	ReservationHeld     Subject = 60 // an amount is held
	ReservationExtended Subject = 61 // it is held longer
	ReservationReleased Subject = 62 // it is held no longer, by request
	ReservationExpired  Subject = 63 // it is held no longer, because its time is over
	AccountReconciled   Subject = 64 // an account that differed from the log was set to it
	ThresholdCrossed    Subject = 65 // the used amount of a period rose to a threshold
	ThresholdChanged    Subject = 66 // a threshold was defined or removed
	WebhookChanged      Subject = 67 // an endpoint of a webhook was created, changed, disabled or removed

	PeriodCloseRequested Subject = 70 // the close of a period began; its position is the cut
	PeriodFrozen         Subject = 71 // a part of the period's figures
	PeriodClosed         Subject = 72 // the figures are final
	PeriodReopened       Subject = 73 // usage counts in the period again
	AdjustmentProposed   Subject = 74 // a rebuild counts a closed period in another way
	AdjustmentDecided    Subject = 75 // adjustments were approved or waived
	PushDelivered        Subject = 76 // the billing provider counts a pushed amount
	PushFailed           Subject = 77 // the billing provider refused a pushed amount, or its answer stays unknown
	PushCompared         Subject = 78 // the provider's total differs from the delivered amounts

	OffboardingStepped Subject = 80 // a step of a tenant's offboarding ended
	ErasureStepped     Subject = 81 // an erasure of a tenant's personal data was requested, or ended
)

// SubjectInfo is a row of the registry.
type SubjectInfo struct {
	Subject   Subject
	Type      string // meterplex.<context>.<aggregate>.<verb_past>
	Version   int
	Topic     Topic
	Retention string // class: hot, warm or cold
	Trigger   string // when the event is recorded
	Payload   reflect.Type
}

// Name is the wire form of the subject: type and version.
func (i SubjectInfo) Name() string { return string(i.AppendName(nil)) }

// AppendName appends the name.
func (i *SubjectInfo) AppendName(dst []byte) []byte {
	return strconv.AppendInt(append(append(dst, i.Type...), ".v"...), int64(i.Version), 10)
}

var registry = [...]SubjectInfo{
	{UsageRecorded, "meterplex.usage.event.recorded", 1, TopicUsageRaw, "cold",
		"the service accepts a usage event, from POST /usage/events or usage.commands", reflect.TypeFor[Usage]()},
	{UsageValidated, "meterplex.usage.event.validated", 1, TopicUsageValidated, "cold", "the validator accepts a recorded event",
		reflect.TypeFor[Validated]()},
	{UsageRejected, "meterplex.usage.event.rejected", 1, TopicUsageDeadLetter, "cold", "the validator rejects a recorded event",
		reflect.TypeFor[Rejected]()},
	{UsageConflicted, "meterplex.usage.event.conflicted", 1, TopicUsageDeadLetter, "cold",
		"a client sends a known eventId with another payload", reflect.TypeFor[Conflicted]()},
	{DuplicatesSeen, "meterplex.usage.event.duplicates_seen", 1, TopicUsageDuplicates, "hot",
		"clients send known events again; one event for each tenant and second", reflect.TypeFor[Duplicates]()},
	{UsageRetried, "meterplex.usage.event.retried", 1, TopicUsageRaw, "cold",
		"a retry returns a dead letter of stage VALIDATION or PUBLISHING to the validator", reflect.TypeFor[Retried]()},
	{UsageRefused, "meterplex.usage.command.refused", 1, TopicUsageDeadLetter, "cold",
		"the service refuses a usage event from usage.commands", reflect.TypeFor[RefusedUsage]()},
	{UsageAdmitted, "meterplex.usage.event.admitted", 1, TopicUsageRaw, "cold",
		"the service grants a request to use an amount, and records the usage", reflect.TypeFor[Admitted]()},
	{UsageCorrected, "meterplex.usage.event.corrected", 1, TopicUsageRaw, "cold", "the service accepts a correction of recorded usage",
		reflect.TypeFor[Correction]()},
	{PublishFailed, "meterplex.usage.event.publish_failed", 1, TopicUsageDeadLetter, "cold",
		"the relay withholds an event that cannot be published even alone", reflect.TypeFor[Failed]()},
	{AggregationFailed, "meterplex.usage.event.aggregation_failed", 1, TopicUsageDeadLetter, "cold", "a consumer cannot apply an event",
		reflect.TypeFor[Failed]()},
	{Reaggregated, "meterplex.usage.event.reaggregated", 1, TopicUsageValidated, "cold",
		"a retry returns a dead letter of stage AGGREGATION to the aggregator", reflect.TypeFor[Reaggregate]()},
	{RetryRequested, "meterplex.dead_letters.dead_letter.retry_requested", 1, TopicCommands, "warm",
		"POST /dead-letters/{id}/retry or a bulk retry requests the retry of a dead letter", reflect.TypeFor[Retry]()},
	{DeadLetterRetried, "meterplex.dead_letters.dead_letter.retried", 1, TopicUsageDeadLetter, "cold",
		"the command router executes a retry", reflect.TypeFor[RetryDone]()},
	{DeadLetterClosed, "meterplex.dead_letters.dead_letter.closed", 1, TopicUsageDeadLetter, "cold",
		"a retry succeeds, or a dead letter is discarded", reflect.TypeFor[Closed]()},
	{RetryRefused, "meterplex.dead_letters.dead_letter.retry_refused", 1, TopicUsageDeadLetter, "warm",
		"the command router cannot execute a retry", reflect.TypeFor[Refused]()},
	{BulkRequested, "meterplex.dead_letters.bulk.requested", 1, TopicCommands, "warm",
		"POST /dead-letters/bulk requests a retry or discard of many dead letters", reflect.TypeFor[Bulk]()},
	{UsageRetracted, "meterplex.usage.event.retracted", 1, TopicUsageRaw, "cold", "the service accepts a retraction of recorded usage",
		reflect.TypeFor[Retraction]()},
	{RefusalsSeen, "meterplex.usage.event.refusals_seen", 1, TopicUsageDuplicates, "warm",
		"POST /usage/events refuses usage; one event for each tenant and second", reflect.TypeFor[Refusals]()},
	{TenantCreated, "meterplex.catalogue.tenant.created", 1, TopicCatalogue, "cold", "POST /tenants creates a tenant",
		reflect.TypeFor[Tenant]()},
	{TenantChanged, "meterplex.catalogue.tenant.changed", 1, TopicCatalogue, "cold", "PATCH /tenants/{id} changes a tenant",
		reflect.TypeFor[Tenant]()},
	{APIKeyCreated, "meterplex.catalogue.api_key.created", 1, TopicCatalogue, "cold",
		"POST /tenants/{id}/api-keys or POST /operator-keys creates a key", reflect.TypeFor[APIKey]()},
	{APIKeyRotated, "meterplex.catalogue.api_key.rotated", 1, TopicCatalogue, "cold", "POST …/{keyId}/rotate rotates a key",
		reflect.TypeFor[APIKeyRotation]()},
	{APIKeyRevoked, "meterplex.catalogue.api_key.revoked", 1, TopicCatalogue, "cold", "DELETE …/{keyId} revokes a key",
		reflect.TypeFor[APIKey]()},
	{FeatureDefined, "meterplex.catalogue.feature.defined", 1, TopicCatalogue, "cold",
		"PUT /features/{lookupKey} creates or changes a feature", reflect.TypeFor[DefinedFeature]()},
	{PlanDefined, "meterplex.catalogue.plan.defined", 1, TopicCatalogue, "cold", "PUT /plans/{key} creates or changes a plan",
		reflect.TypeFor[Plan]()},
	{SubscriptionCreated, "meterplex.catalogue.subscription.created", 1, TopicCatalogue, "cold",
		"POST /tenants/{id}/subscriptions creates a subscription", reflect.TypeFor[Subscription]()},
	{SubscriptionChanged, "meterplex.catalogue.subscription.changed", 1, TopicCatalogue, "cold",
		"PATCH …/subscriptions/{sid} changes a subscription", reflect.TypeFor[Subscription]()},
	{PriceDefined, "meterplex.catalogue.price.defined", 1, TopicCatalogue, "cold", "PUT /prices/{key} creates or changes a price",
		reflect.TypeFor[Price]()},
	{RebuildRequested, "meterplex.projections.rebuild.requested", 1, TopicCommands, "cold",
		"POST /projections/{name}/rebuilds requests a rebuild, or …/verify a comparison with the log", reflect.TypeFor[Rebuild]()},
	{RebuildReady, "meterplex.projections.rebuild.readied", 1, TopicBilling, "warm",
		"the rows of a rebuild have caught up with the live rows", reflect.TypeFor[RebuildStep]()},
	{RebuildPromoted, "meterplex.projections.rebuild.promoted", 1, TopicBilling, "cold",
		"POST /rebuilds/{id}/promote switches readers to the rebuilt rows", reflect.TypeFor[RebuildStep]()},
	{RebuildRolledBack, "meterplex.projections.rebuild.rolled_back", 1, TopicBilling, "cold",
		"POST /rebuilds/{id}/rollback switches readers back to the previous rows", reflect.TypeFor[RebuildStep]()},
	{RebuildAbandoned, "meterplex.projections.rebuild.abandoned", 1, TopicBilling, "warm",
		"POST /rebuilds/{id}/abandon or the end of a verify drops the rows of a rebuild", reflect.TypeFor[RebuildStep]()},
	{RebuildFailed, "meterplex.projections.rebuild.failed", 1, TopicBilling, "warm",
		"a rebuild cannot apply an event to its rows", reflect.TypeFor[RebuildStep]()},
	{ProjectionVerified, "meterplex.projections.projection.verified", 1, TopicBilling, "cold",
		"a verify has compared the live rows with the log", reflect.TypeFor[Verified]()},
	{ReplayRequested, "meterplex.replay.range.requested", 1, TopicCommands, "cold",
		"POST /replays requests a replay, or POST /replays/rewind a rewind of the consumer of usage.commands", reflect.TypeFor[Replay]()},
	{ReplayDone, "meterplex.replay.range.done", 1, TopicCommands, "warm", "the relay has published a replayed range",
		reflect.TypeFor[ReplayEnd]()},
	{Rewound, "meterplex.replay.cursor.rewound", 1, TopicCommands, "cold",
		"POST /replays/rewind has moved the relay's cursors or a consumer's offsets, or names a consumer of the log",
		reflect.TypeFor[Rewind]()},
	{ReservationHeld, "meterplex.entitlements.reservation.held", 1, TopicReservations, "cold", "POST …/reservations holds an amount",
		reflect.TypeFor[Reservation]()},
	{ReservationExtended, "meterplex.entitlements.reservation.extended", 1, TopicReservations, "cold",
		"POST …/reservations/{id}/extend holds it longer", reflect.TypeFor[Reservation]()},
	{ReservationReleased, "meterplex.entitlements.reservation.released", 1, TopicReservations, "cold",
		"DELETE …/reservations/{id} ends a reservation without usage", reflect.TypeFor[Reservation]()},
	{ReservationExpired, "meterplex.entitlements.reservation.expired", 1, TopicReservations, "cold", "the time of a reservation is over",
		reflect.TypeFor[Reservation]()},
	{AccountReconciled, "meterplex.entitlements.account.reconciled", 1, TopicReservations, "cold",
		"POST /quota/accounts/reconcile repairs an account that differs from the log", reflect.TypeFor[ReconciledAccount]()},
	{ThresholdCrossed, "meterplex.entitlements.threshold.crossed", 1, TopicNotifications, "cold",
		"the used amount of a period rises to a threshold, once for each period and value", reflect.TypeFor[CrossedThreshold]()},
	{ThresholdChanged, "meterplex.entitlements.threshold.changed", 1, TopicCatalogue, "cold",
		"POST or DELETE /tenants/{id}/thresholds defines or removes a threshold", reflect.TypeFor[ChangedThreshold]()},
	{WebhookChanged, "meterplex.notifications.webhook.changed", 1, TopicNotifications, "cold",
		"an endpoint of a webhook is created, changed, disabled or removed", reflect.TypeFor[ChangedWebhook]()},
	{PeriodCloseRequested, "meterplex.billing.period.close_requested", 1, TopicBilling, "cold",
		"POST /tenants/{id}/periods/{key}/close, or the tenant's policy, closes a period", reflect.TypeFor[CloseRequested]()},
	{PeriodFrozen, "meterplex.billing.period.frozen", 1, TopicBilling, "cold",
		"the service freezes the figures of a period; 500 lines in each", reflect.TypeFor[Frozen]()},
	{PeriodClosed, "meterplex.billing.period.closed", 1, TopicBilling, "cold", "the service has frozen all figures of a period",
		reflect.TypeFor[ClosedPeriod]()},
	{PeriodReopened, "meterplex.billing.period.reopened", 1, TopicBilling, "cold",
		"POST /tenants/{id}/periods/{key}/reopen opens a closed period", reflect.TypeFor[ReopenedPeriod]()},
	{AdjustmentProposed, "meterplex.billing.adjustment.proposed", 1, TopicBilling, "cold",
		"a promotion or a rollback counts a closed period in another way", reflect.TypeFor[ProposedAdjustment]()},
	{AdjustmentDecided, "meterplex.billing.adjustment.decided", 1, TopicBilling, "cold",
		"POST /adjustments/{id}/approve, …/waive or /adjustments/decide decides adjustments", reflect.TypeFor[DecidedAdjustments]()},
	{PushDelivered, "meterplex.billing.push.delivered", 1, TopicBilling, "cold",
		"the billing provider counts a delivered amount, by its answer, its totals or an operator's word", reflect.TypeFor[Push]()},
	{PushFailed, "meterplex.billing.push.failed", 1, TopicBilling, "cold",
		"the billing provider refuses a Stripe delivery, or its answer stays unknown", reflect.TypeFor[FailedPush]()},
	{PushCompared, "meterplex.billing.push.compared", 1, TopicBilling, "cold", "the provider's total differs from the delivered amounts",
		reflect.TypeFor[ComparedPushes]()},
	{OffboardingStepped, "meterplex.tenants.offboarding.stepped", 1, TopicBilling, "cold", "a step of a tenant's offboarding ends",
		reflect.TypeFor[OffboardingStep]()},
	{ErasureStepped, "meterplex.tenants.erasure.stepped", 1, TopicBilling, "cold",
		"POST /tenants/{id}/erase requests the erasure of personal data, or it ends", reflect.TypeFor[ErasureStep]()},
}

// Subjects lists the registry in the order of the numbers.
func Subjects() []SubjectInfo { return registry[:] }

// Info returns a subject's row; ok is false if the subject is not registered.
func (s Subject) Info() (SubjectInfo, bool) {
	for i := range registry {
		if registry[i].Subject == s {
			return registry[i], true
		}
	}
	return SubjectInfo{}, false
}

// Topic is the topic that the subject's events are published to; 0 if the subject is
// not registered.
func (s Subject) Topic() Topic {
	if s < 0 || int(s) >= len(topicOf) {
		return 0
	}
	return topicOf[s]
}

// topicOf holds the topic of each subject's number.
var topicOf = func() (of [maxSubject + 1]Topic) {
	for i := range registry {
		of[registry[i].Subject] = registry[i].Topic
	}
	return of
}()

// maxSubject is at least the greatest number of a subject.
const maxSubject = 127

// TakesReason reports whether the payload of the subject's events has an optional member reason, for the reason of a request whose body
// names none. Payloads of other changes hold the reason of the body.
func (s Subject) TakesReason() bool {
	switch s {
	case TenantCreated, TenantChanged, APIKeyCreated, APIKeyRotated, APIKeyRevoked, FeatureDefined, PlanDefined, PriceDefined,
		SubscriptionCreated, SubscriptionChanged, ThresholdChanged, WebhookChanged:
		return true
	}
	return false
}

// IsUsage reports whether the subject is one of recorded usage.
func (s Subject) IsUsage() bool { return s == UsageRecorded || s == UsageAdmitted }

// IsCorrection reports whether the subject is one of recorded corrections and retractions.
func (s Subject) IsCorrection() bool { return s == UsageCorrected || s == UsageRetracted }

// SubjectOf finds the subject of a type and version.
func SubjectOf(eventType string, version int) (Subject, bool) {
	for i := range registry {
		if registry[i].Type == eventType && registry[i].Version == version {
			return registry[i].Subject, true
		}
	}
	return 0, false
}
