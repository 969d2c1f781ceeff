// Package usage holds the commands of usage events and their sums.
package usage

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// Cmd groups the usage commands.
type Cmd struct {
	Send    Send    `cmd:"" help:"Send one usage event, or many from stdin."`
	Correct Correct `cmd:"" help:"Replace the amount of recorded usage."`
	Retract Retract `cmd:"" help:"Take recorded usage back, for ever."`
	Import  Import  `cmd:"" help:"Send the rows of a CSV file, each exactly once."`
	Export  Export  `cmd:"" help:"Write usage events to stdout, as they can be sent."`
}

const aggregatesHelp = `The figures of all tenants in May, with an operator key, as CSV:

    meterplex usage aggregates --period 2026-05 -o csv`

// aggregates prints the figures of a tenant, or of all.
func aggregates(a *app.App, l *app.Call) error {
	return app.Figures(a, l, app.LargestPage, "feature", "periodKey", "amount", "eventCount", "lastEventAt", "subscriptionId")
}
