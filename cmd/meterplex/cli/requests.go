package cli

import "sync"

// tags are tags of kong, and reads read texts, by input.
type (
	tags  = map[string]string
	reads = map[string]func(string) (any, error)
)

const adjustmentColumns = "id kind state feature amount eventCount position sourceEventId periodKey snapshot tenantId reason"

// requests lists the commands of one request.
var requests = sync.OnceValue(func() []command {
	overlap := tags{"overlapSeconds": `name:"overlap" default:"24h" placeholder:"DURATION" help:"How long the earlier secret goes on working, in whole seconds (default 24h)."`}
	ttl := `name:"ttl" placeholder:"DURATION" help:"How long from now: seconds, e.g. 300, or a duration, e.g. 5m (at most 24h). A longer time that is left stays."`
	byCode := tags{"reason": `aliases:"code"`}
	one := tags{"status": `xor:"change" required:""`, "plan": `xor:"change" required:""`, "prices": `xor:"change" required:""`}
	return []command{
		{name: "tenants create", op: "createTenant", args: "name", tags: tags{"class": `default:"small"`, "externalIds": `sep:"none"`}},
		{name: "tenants list", op: "listTenants", columns: "id name class mode status createdAt externalIds", tags: tags{"q": `aliases:"query" short:"q" placeholder:"TEXT"`}},
		{name: "tenants show", op: "getTenant", args: "tenantId"},
		{name: "tenants update", op: "changeTenant", args: "tenantId", own: removals{}, amend: removeOf, tags: tags{"externalIds": `sep:"none"`}},
		{name: "tenants billing", op: "putBilling", args: "tenantId", own: removal{}, run: billing, tags: tags{"provider": `default:"stripe"`, "customer": `optional:""`},
			help: "Set the customer of a tenant at the billing provider, or remove it."},
		{name: "tenants offboard start", op: "offboardTenant", args: "tenantId", more: "What it waits for is shown by meterplex sagas show (docs/how-to/offboard-a-tenant.md)."},
		{name: "tenants offboard show", op: "getOffboarding", args: "tenantId"},
		{name: "tenants offboard cancel", op: "cancelOffboarding", args: "tenantId"},
		{name: "tenants erasures", op: "listErasures", columns: "tenantId state requestedAt endedAt rewrittenEvents reason sagaId"},

		{name: "keys create", op: "createKey", operator: "createOperatorKey", run: newKey, help: "Create a key; its secret is shown this once.",
			tags: tags{"scopes": `help:"Of a tenant key: ${tenant_scopes}. Of an operator key: ${operator_scopes}."`}},
		{name: "keys list", op: "listKeys", operator: "listOperatorKeys", columns: "id name prefix scopes createdAt expiresAt revokedAt", help: "List keys, without secrets."},
		{name: "keys rotate", op: "rotateKey", operator: "rotateOperatorKey", run: newKey, tags: overlap, read: reads{"overlapSeconds": seconds(0)},
			help: "Replace a key; both work for the overlap."},
		{name: "keys revoke", op: "revokeKey", operator: "revokeOperatorKey", done: "Revoked", help: "Revoke a key, everywhere within a second."},

		{name: "features put", op: "putFeature"},
		{name: "features list", op: "listFeatures", columns: "lookupKey name type unit"},
		{name: "features show", op: "getFeature"},

		{name: "plans put", op: "putPlan", file: true, read: reads{"entitlements": parseEntitlement}, more: plansHelp,
			tags: tags{"key": `name:"plan"`, "entitlements": `placeholder:"FEATURE=LIMIT,…"`}},
		{name: "plans list", op: "listPlans", columns: "key name entitlements"},
		{name: "plans show", op: "getPlan", tags: tags{"key": `name:"plan"`}},
		{name: "plans subscriptions", op: "listPlanSubscriptions", columns: "id tenantId status createdAt", own: older{}, amend: onlyOlder,
			tags: tags{"key": `name:"plan"`, "snapshot": "-", "--limit": `default:"100"`}},

		{name: "prices put", op: "putPrice", file: true, read: reads{"tiers": parseTier}, tags: tags{"tiers": `placeholder:"UPTO=MICROUNITS,…"`}, more: pricesHelp},
		{name: "prices list", op: "listPrices", columns: "key version name currency model microUnits packageSize tiers"},
		{name: "prices show", op: "getPrice"},
		{name: "prices evaluate", op: "evaluatePrice", args: "priceKey?", read: reads{"price": readFile}, run: printEvaluation,
			tags: tags{
				"priceKey": `help:"A defined price; --file for one that is not."`, "rebuildId": `name:"rebuild"`,
				"price": `name:"file" placeholder:"FILE" help:"Read a price that is not defined from a JSON file; needs --feature."`}},
		{name: "prices versions", op: "listPriceVersions", columns: "version name currency model microUnits packageSize tiers"},

		{name: "subscriptions create", op: "createSubscription"},
		{name: "subscriptions list", op: "listSubscriptions", columns: "id plan status startsAt createdAt"},
		{name: "subscriptions show", op: "getSubscription"},
		{name: "subscriptions update", op: "changeSubscription", tags: one, help: "Change a subscription's status, apply a plan, or its current prices."},

		{name: "usage aggregates", op: "listAggregates", own: Fresh{}, run: aggregates, more: aggregatesHelp},
		{name: "usage series", op: "getSeries", own: Fresh{}, amend: rangeOfSeries, run: showSeries, tags: tags{
			"feature": `required:""`, "granularity": `enum:"hour,day,month" default:"day"`, "groupBy": `help:"By the values of a metadata key that the feature declares; at most two."`,
			"from": `help:"From this time on, cut to a bucket. Not given: 24 hours, 30 days or 12 months before --to."`, "to": `help:"Before this time, up to the end of its bucket. Not given: now."`}},
		{name: "usage explain", op: "explainAggregate", own: explaining{}, run: explain, more: explainHelp,
			tags: tags{"period": `required:"" help:"The figure's period: 2026-05, 2026 or lifetime."`, "periodKey": "-", "include": "-"}},
		{name: "usage receipt", op: "getReceipt"},
		{name: "usage list", op: "listUsageEvents", columns: "position recordedAt eventId type feature amount timestamp status code"},
		{name: "usage conflicts", op: "listConflicts", columns: "at eventId position firstPosition firstHash conflictHash"},
		{name: "usage refusals", op: "listRefusals", columns: "last tenantId code feature count first"},

		{name: "events show", op: "getEvent", run: showEvent},
		{name: "events lineage", op: "getLineage", run: showLineage},

		{name: "entitlements accounts", op: "listAccounts", columns: "feature periodKey used held openReservations limit limitBehavior", tags: tags{"tenantId": `required:""`}},
		{name: "entitlements check", op: "checkEntitlement", own: Fresh{}, run: checkEntitlement, tags: tags{"amount": `default:"1"`},
			help: "Check whether the key's tenant may use an amount of a feature. Exit code 0 yes, 1 no."},
		{name: "entitlements commit", op: "commitReservation", run: commitReservation, more: commitHelp,
			tags: tags{"overage": `enum:"deny,record"`, "eventId": `optional:"" help:"The usage's own id; sending it again gets the first answer. Not given: a new one, printed with the answer."`}},
		{name: "entitlements consume", op: "consume", args: "feature?", own: together{}, run: consume, more: consumeHelp,
			help: "Use an amount if the limit allows it. Exit code 0 granted and recorded, 1 refused.", tags: tags{
				"amount": `optional:"" help:"How much is used (default 1)."`, "metadata": `help:"Text kept with the event; may be repeated."`,
				"eventId": `optional:"" help:"The request's own id; sending it again gets the first answer. Not given: a new one, printed with the answer."`}},
		{name: "entitlements extend", op: "extendReservation", tags: tags{"ttlSeconds": ttl}, read: reads{"ttlSeconds": seconds(1)}},
		{name: "entitlements list", op: "listEntitlements", own: Fresh{}, run: entitlements},
		{name: "entitlements reconcile", op: "reconcileAccounts", amend: repairsForAReason, run: reconcile, more: reconcileHelp},
		{name: "entitlements release", op: "releaseReservation"},
		{name: "entitlements reservations", op: "listReservations", own: oneReservation{}, run: reservations,
			columns: "reservationId amount state periodKey expiresAt committed eventId endedAt position", help: "List the reservations of a feature in the order of their ids, or show one."},
		{name: "entitlements reserve", op: "reserve", args: "feature?", own: together{}, run: reserve, read: reads{"ttlSeconds": seconds(1)}, more: reserveHelp,
			help: "Hold an amount if the limit allows it, until it is committed or released. Exit code 0 held, 1 refused.", tags: tags{
				"amount":        `optional:"" help:"How much is held (default 1)."`,
				"reservationId": `optional:"" help:"The reservation's own id; sending it again gets the reservation as it is. Not given: a new one, printed with the answer."`,
				"ttlSeconds":    `name:"ttl" placeholder:"DURATION" help:"How long the amount is held: seconds, e.g. 300, or a duration, e.g. 5m (default 60 s, at most 24h)."`}},

		{name: "dead-letters list", op: "listDeadLetters", columns: "id status stage code eventId feature tenantId retryCount lastFailedAt fingerprint", tags: byCode},
		{name: "dead-letters groups", op: "listDeadLetterGroups", columns: "fingerprint count stage code feature tenants statuses lastFailedAt reason sampleId", tags: byCode},
		{name: "dead-letters show", op: "getDeadLetter"},
		{name: "dead-letters retry", op: "retryDeadLetter", tags: tags{"reason": `required:""`}},
		{name: "dead-letters discard", op: "discardDeadLetter"},
		{name: "dead-letters bulk", op: "bulkDeadLetters", args: "action", own: bulkFlags{}, run: bulk,
			tags: tags{"action": `enum:"retry,discard"`, "filter": "-", "reason": `required:"" help:"The reason, recorded in the log."`,
				"expectedMatched": `help:"Change no dead letter unless N match. Without --yes it is the number that was confirmed."`}, help: "Retry or discard the dead letters that match a filter, after a preview."},

		{name: "replay range", op: "replayRange", own: waiting{}, run: replay},
		{name: "replay rewind", op: "rewind", own: rewinding{}, amend: rewindTo, run: replay, more: rewindHelp,
			tags: tags{"to": "-", "positions": `name:"to-position" xor:"to" placeholder:"P-N"`}},
		{name: "replay list", op: "listReplays", columns: "id kind state topic consumer to records remaining createdAt reason"},
		{name: "replay show", op: "getReplay"},

		{name: "periods list", op: "listPeriods", columns: "periodKey state snapshot cutPosition closedAt partial missing figuresHash"},
		{name: "periods show", op: "getPeriod", run: showPeriod},
		{name: "periods close", op: "closePeriod"},
		{name: "periods reopen", op: "reopenPeriod"},
		{name: "periods adjustments", op: "listPeriodAdjustments", columns: adjustmentColumns},
		{name: "periods charges", op: "chargePeriod", run: showCharges},
		{name: "periods export", op: "exportPeriod", own: exportForm{}, run: exportPeriod, more: exportHelp},
		{name: "periods verify", op: "exportPeriod", own: exportFile{}, run: verifyPeriod, more: verifyPeriodHelp, help: "Compute the hash of the frozen figures, and compare it."},

		{name: "adjustments list", op: "listAdjustments", columns: adjustmentColumns},
		{name: "adjustments approve", op: "approveAdjustment"},
		{name: "adjustments waive", op: "waiveAdjustment"},
		{name: "adjustments decide", op: "decideAdjustments", args: "decision", tags: tags{"decision": `enum:"approve,waive"`}, more: decideHelp},

		{name: "pushes list", op: "listPushes", columns: "id tenantId feature periodKey snapshot amount state attempts nextAt lastError"},
		{name: "pushes show", op: "getPush"},
		{name: "pushes retry", op: "retryPush"},
		{name: "pushes resolve", op: "resolvePush",
			tags: tags{"delivered": `negatable:"" help:"--delivered: the provider counts the amount. --no-delivered: it surely does not, and the push is sent again."`}},
		{name: "pushes reconcile", op: "reconcilePushes", more: "It prints the saga; its end is shown by meterplex sagas show (docs/runbooks/billing-difference.md)."},

		{name: "sagas list", op: "listSagas", columns: "id kind tenantId key state step attempts missing nextAt outcome lastError"},
		{name: "sagas show", op: "getSaga"},
		{name: "sagas retry", op: "retrySaga"},

		{name: "webhooks create", op: "createWebhook", args: "url", run: newWebhook, help: "Create a webhook; its secret is shown this once."},
		{name: "webhooks list", op: "listWebhooks", columns: "id url events status reason secrets failingSince lastSuccessAt createdAt"},
		{name: "webhooks show", op: "getWebhook"},
		{name: "webhooks update", op: "changeWebhook", tags: tags{"url": `name:"send-to"`}},
		{name: "webhooks remove", op: "removeWebhook"},
		{name: "webhooks rotate", op: "rotateWebhook", run: newWebhook, tags: overlap, read: reads{"overlapSeconds": seconds(0)}},
		{name: "webhooks test", op: "testWebhook"},
		{name: "webhooks deliveries", op: "listDeliveries", columns: "id type state attempts nextAt createdAt eventId position last"},
		{name: "webhooks replay", op: "replayDelivery", own: timeRange{}, run: replayWebhook, help: "Send one delivery, or the events of a time range, again.", more: replayWebhookHelp},

		{name: "thresholds create", op: "createThreshold", tags: tags{"percent": `xor:"value" required:""`, "amount": `xor:"value" required:""`}},
		{name: "thresholds list", op: "listThresholds", columns: "id feature percent amount position createdAt"},
		{name: "thresholds show", op: "getThreshold"},
		{name: "thresholds remove", op: "removeThreshold"},

		{name: "outbox withheld", op: "listWithheld", columns: "position topic subject tenantId withheldAt late deadLetterId reason"},

		{name: "projections rebuild", op: "startRebuild", own: following{}, run: startRebuild},
		{name: "projections rebuilds", op: "listRebuilds", columns: "id projection state purpose foldVersion tenantId periodKey differs createdAt reason"},
		{name: "projections diff", op: "diffRebuild", own: differing{}, run: showDiff, tags: tags{"totals": "-", "largest": "-"}},
		{name: "projections promote", op: "promoteRebuild", own: promoting{}, run: promote},
		{name: "projections rollback", op: "rollBackRebuild", own: agreeing{}, run: rollBack},
		{name: "projections abandon", op: "abandonRebuild", run: decide},
		{name: "projections verify", op: "verifyProjection", amend: repairsForAReason, run: verifyProjection,
			help: "Compare a projection with the log. Exit code 0: no drift, 1: drift, 2: not compared."},

		{name: "schemas list", op: "listSchemas", columns: "subject version topic retention recorded"},

		{name: "system show", op: "getSystem", run: showSystem},
		{name: "system instances", op: "listInstances", columns: "id state version roles startedAt seenAt endedAt", tags: tags{"--limit": `default:"100"`}},
		{name: "system instance", op: "getInstance", run: showInstance},
		{name: "system identity", op: "getIdentity", run: showIdentity,
			help: "Show that no event is lost: accepted = aggregated + rejected + in flight + parked. Exit code 1 if it does not hold."},
	}
})

// older selects subscriptions.
type older struct {
	Older bool `help:"Only subscriptions that have not ended, and whose snapshot differs from the plan."`
}

func onlyOlder(_ *app, l *call, in map[string]any) error {
	if flagOf[older](l, "Own").Older {
		in["snapshot"] = "older"
	}
	return nil
}

const decideHelp = `The pending adjustments of a period, up to a position:

    meterplex adjustments decide approve --tenant ID --period 2026-05 --up-to 17-9400 --reason "agreed" --dry-run

A decision is final.`

const replayWebhookHelp = `The events of a time range are those of the webhook's types that were recorded in it, delivered or not, also while the webhook was disabled:

    meterplex webhooks replay WEBHOOK --tenant ID --from 2026-05-01T00:00:00Z --to 2026-06-01T00:00:00Z`
