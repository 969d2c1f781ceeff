package billing

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

const adjustmentColumns = "id kind state feature amount eventCount position sourceEventId periodKey snapshot tenantId reason"

// billingRequests lists the commands of one request.
func Requests() []app.Command {
	return []app.Command{
		{Name: "periods list", Op: "listPeriods", Columns: "periodKey state snapshot cutPosition closedAt partial missing figuresHash"},
		{Name: "periods show", Op: "getPeriod", Run: showPeriod},
		{Name: "periods close", Op: "closePeriod"},
		{Name: "periods reopen", Op: "reopenPeriod"},
		{Name: "periods adjustments", Op: "listPeriodAdjustments", Columns: adjustmentColumns},
		{Name: "periods charges", Op: "chargePeriod", Run: showCharges},
		{Name: "periods export", Op: "exportPeriod", Own: exportForm{}, Run: exportPeriod, More: exportHelp},
		{Name: "periods verify", Op: "exportPeriod", Own: exportFile{}, Run: verifyPeriod, More: verifyPeriodHelp,
			Help: "Compute the hash of the frozen figures, and compare it."},

		{Name: "adjustments list", Op: "listAdjustments", Columns: adjustmentColumns},
		{Name: "adjustments approve", Op: "approveAdjustment"},
		{Name: "adjustments waive", Op: "waiveAdjustment"},
		{Name: "adjustments decide", Op: "decideAdjustments", Args: "decision", Tags: app.Tags{"decision": `enum:"approve,waive"`},
			More: decideHelp},

		{Name: "pushes list", Op: "listPushes", Columns: "id tenantId feature periodKey snapshot amount state attempts nextAt lastError"},
		{Name: "pushes show", Op: "getPush"},
		{Name: "pushes retry", Op: "retryPush"},
		{Name: "pushes resolve", Op: "resolvePush",
			Tags: app.Tags{
				"delivered": `negatable:"" help:"--delivered: the provider counts the amount. --no-delivered: it does not; it is sent again."`}},
		{Name: "pushes reconcile", Op: "reconcilePushes",
			More: "Prints the background process; meterplex sagas show prints its end (docs/runbooks/billing-difference.md)."},
	}
}

const decideHelp = `The pending adjustments of a period, up to a position:

    meterplex adjustments decide approve --tenant ID --period 2026-05 --up-to 17-9400 --reason "agreed" --dry-run

A decision is final.`
