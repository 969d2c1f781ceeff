package usage

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// usageRequests lists the commands of one request.
func Requests() []app.Command {
	return []app.Command{
		{Name: "usage aggregates", Op: "listAggregates", Own: app.Fresh{}, Run: aggregates, More: aggregatesHelp},
		{Name: "usage series", Op: "getSeries", Own: app.Fresh{}, Amend: rangeOfSeries, Run: showSeries, Tags: app.Tags{
			"feature": `required:""`, "granularity": `enum:"hour,day,month" default:"day"`,
			"groupBy": `help:"By the values of a metadata key that the feature declares; at most two."`,
			"from":    `help:"From this time on, cut to a bucket. Not given: 24 hours, 30 days or 12 months before --to."`,
			"to":      `help:"Before this time, up to the end of its bucket. Not given: now."`}},
		{Name: "usage explain", Op: "explainAggregate", Own: explaining{}, Run: explain, More: explainHelp,
			Tags: app.Tags{"period": `required:"" help:"The figure's period: 2026-05, 2026 or lifetime."`, "periodKey": "-",
				"include": "-"}},
		{Name: "usage receipt", Op: "getReceipt"},
		{Name: "usage list", Op: "listUsageEvents", Columns: "position recordedAt eventId type feature amount timestamp status code"},
		{Name: "usage conflicts", Op: "listConflicts", Columns: "at eventId position firstPosition firstHash conflictHash"},
		{Name: "usage refusals", Op: "listRefusals", Columns: "last tenantId code feature count first"},
	}
}
