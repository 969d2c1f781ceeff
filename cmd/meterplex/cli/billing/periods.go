// Package billing holds the commands of periods, their adjustments and pushes.
package billing

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// readPeriod reads a period page by page, with its live figures, which an export may lack. It returns the answer with all lines, and these.
func readPeriod(a *app.App, l *app.Call) (whole json.RawMessage, lines []json.RawMessage, err error) {
	lines, pages := []json.RawMessage{}, 0
	err = l.Pages(a, func(raw json.RawMessage) error {
		var page struct{ Lines []json.RawMessage }
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read the lines of the period: %w", err)
		}
		whole, lines, pages = raw, append(lines, page.Lines...), pages+1
		return nil
	})
	if err != nil || pages == 1 {
		return whole, lines, err
	}
	members, err := output.ParseMembers(whole)
	if err != nil {
		return nil, nil, err
	}
	all, err := json.Marshal(lines)
	return members.With("lines", all), lines, err
}

// lineColumns are the columns of a table of lines.
func lineColumns() []string {
	return []string{"feature", "frozen", "pending", "approved", "waived", "billable", "net", "unreconciled", "frozenEventCount",
		"netEventCount", "subscriptionId"}
}

// showPeriod prints the period; as a table its members, then its lines.
func showPeriod(a *app.App, l *app.Call) error {
	raw, lines, err := readPeriod(a, l)
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" && a.Flags.Output != "csv" {
		return a.Object(raw)
	}
	members, err := output.ParseMembers(raw)
	if err != nil {
		return err
	}
	if a.Flags.Output == "table" {
		for _, name := range []string{"state", "snapshot", "cutPosition", "closedAt", "figuresHash", "despite", "partial", "missing",
			"asOfPosition"} {
			fmt.Fprintf(a.Stdout, "%-12s  %s\n", name, output.Cell(members.Find(name), "table"))
		}
		fmt.Fprintln(a.Stdout)
	}
	p, err := a.Filled(lines, lineColumns()...)
	if err != nil {
		return err
	}
	return a.Close(p, noLines(l))
}

// noLines is the message beside the table of a period without lines.
func noLines(l *app.Call) string {
	return "No lines: the period " + l.Last() + " has no figures of this tenant."
}

// exportForm holds the form of an export.
type exportForm struct {
	Format string `enum:"json,csv" default:"json" placeholder:"FORMAT" help:"json (the default) or csv."`
}

const exportHelp = `It prints the answer of the service, byte for byte:

    meterplex periods export 2026-05 --tenant ID > 2026-05.json`

// exportPeriod writes the answer. It ends with an error if the answer was cut off.
func exportPeriod(a *app.App, l *app.Call) error {
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	if r.Query.Set("format", app.FlagOf[exportForm](l, "Own").Format); r.Query.Get("format") == "json" {
		raw, err := cl.Do(a.Ctx, r)
		if err == nil {
			_, err = fmt.Fprintf(a.Stdout, "%s\n", raw)
		}
		return err
	}
	return cl.Stream(a.Ctx, r.Path, r.Query, nil, func(line string) error {
		_, err := fmt.Fprintln(a.Stdout, strings.TrimSuffix(line, "\n"))
		return err
	})
}
