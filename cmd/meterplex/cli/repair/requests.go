package repair

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// repairRequests lists the commands of one request.
func Requests() []app.Command {
	byCode := app.Tags{"reason": `aliases:"code"`}
	return []app.Command{
		{Name: "dead-letters list", Op: "listDeadLetters",
			Columns: "id status stage code eventId feature tenantId retryCount lastFailedAt fingerprint", Tags: byCode},
		{Name: "dead-letters groups", Op: "listDeadLetterGroups",
			Columns: "fingerprint count stage code feature tenants statuses lastFailedAt reason sampleId", Tags: byCode},
		{Name: "dead-letters show", Op: "getDeadLetter"},
		{Name: "dead-letters retry", Op: "retryDeadLetter", Tags: app.Tags{"reason": `required:""`}},
		{Name: "dead-letters discard", Op: "discardDeadLetter"},
		{Name: "dead-letters bulk", Op: "bulkDeadLetters", Args: "action", Own: bulkFlags{}, Run: bulk,
			Tags: app.Tags{"action": `enum:"retry,discard"`, "filter": "-", "reason": `required:"" help:"The reason, recorded in the log."`,
				"expectedMatched": `help:"Change no dead letter unless N match. Without --yes it is the number that was confirmed."`},
			Help: "Retry or discard the dead letters that match a filter, after a preview."},

		{Name: "replay range", Op: "replayRange", Own: waiting{}, Run: replay},
		{Name: "replay rewind", Op: "rewind", Own: rewinding{}, Amend: rewindTo, Run: replay, More: rewindHelp,
			Tags: app.Tags{"to": "-", "positions": `name:"to-position" xor:"to" placeholder:"P-N"`}},
		{Name: "replay list", Op: "listReplays", Columns: "id kind state topic consumer to records remaining createdAt reason"},
		{Name: "replay show", Op: "getReplay"},

		{Name: "outbox withheld", Op: "listWithheld", Columns: "position topic subject tenantId withheldAt late deadLetterId reason"},

		{Name: "projections rebuild", Op: "startRebuild", Own: following{}, Run: startRebuild},
		{Name: "projections rebuilds", Op: "listRebuilds",
			Columns: "id projection state purpose foldVersion tenantId periodKey differs createdAt reason"},
		{Name: "projections diff", Op: "diffRebuild", Own: differing{}, Run: showDiff, Tags: app.Tags{"totals": "-", "largest": "-"}},
		{Name: "projections promote", Op: "promoteRebuild", Own: promoting{}, Run: promote},
		{Name: "projections rollback", Op: "rollBackRebuild", Own: agreeing{}, Run: rollBack},
		{Name: "projections abandon", Op: "abandonRebuild", Run: decide},
		{Name: "projections verify", Op: "verifyProjection", Amend: app.RepairsForAReason, Run: verifyProjection,
			Help: "Compare a projection with the log. Exit code 0: no drift, 1: drift, 2: not compared."},
	}
}
