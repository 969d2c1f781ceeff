package operate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/node"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// SystemCmd groups the system commands.
type SystemCmd struct {
	Ready    SystemReady    `cmd:"" help:"Show whether an instance is ready, and its dependencies, within --retry-for. Exit code 1: no."`
	Overview SystemOverview `cmd:"" help:"Show rates, lags and items that need attention."`

	RepairCatalogue SystemRepairCatalogue `cmd:"" help:"Set the rows of the catalogue to their values in the log. Exit code 1: some differed."`
}

// SystemRepairCatalogue repairs the rows of the catalogue in the database, with or without running instances.
type SystemRepairCatalogue struct {
	DatabaseURL *string `name:"database-url" placeholder:"URL" setting:"DATABASE_URL" help:"The service's PostgreSQL."`
}

// Help returns the long help text.
func (SystemRepairCatalogue) Help() string {
	return `Reads the whole log, and replaces the rows of tenants, keys, features, plans, prices, subscriptions, thresholds and webhooks
that differ from it. The log does not change. Writes wait while the rows are replaced, reads do not.

With the service's login it leaves rows that no event made, and wrong rows of prices, policies and histories, which the service only
appends: a superuser's login replaces those, too. Secrets of deleted keys and webhooks are in no event: rotate them.

Exit code 0: no row differs; 1: rows differed, the table shows how many, and how many still differ; 2: it could not compare.`
}

// Run repairs the rows, and prints the tables in which some differed.
func (c *SystemRepairCatalogue) Run(a *app.App) error {
	cfg, _, err := a.Config(*c)
	if err != nil {
		return err
	}
	if cfg.DatabaseURL == "" {
		return errors.New("set DATABASE_URL")
	}
	all, err := node.RepairCatalogue(a.Ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	return printRepair(a, all)
}

func printRepair(a *app.App, all []node.RepairedTable) error {
	rows := a.Rows("table", "different", "unknown", "left")
	var differed, left int64
	for i := range all {
		if all[i].Different+all[i].Unknown == 0 {
			continue
		}
		differed += all[i].Different + all[i].Unknown
		left += all[i].Left
		raw, err := json.Marshal(&all[i])
		if err == nil {
			err = rows.Row(raw)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Close(); err != nil {
		return err
	}
	switch {
	case differed == 0:
		a.Report("No row differs from the log.")
	case left == 0:
		a.Report("Rows that differed from the log: %d. All are repaired.", differed)
	default:
		a.Report("Rows that differed from the log: %d. Left: %d. Repair those with a superuser's login.", differed, left)
	}
	return app.OrNo(differed == 0)
}

// showSystem prints the log's id and the server's lives; other formats include the partitions.
func showSystem(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" {
		return a.Object(raw)
	}
	var answer struct {
		LogID string            `json:"logId"`
		Lives []json.RawMessage `json:"lives"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("reading the system: %w", err)
	}
	a.Report("Log %s. Lives of the database server, newest first:", answer.LogID)
	return a.PrintAll(answer.Lives, "reason", "startedAt", "raisedAt", "timeline", "systemIdentifier", "partitions")
}

// showInstance prints the settings of the instance; other formats than table include its roles and version.
func showInstance(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" {
		return a.Object(raw)
	}
	var answer struct {
		ID, Version string
		Roles       []string
		Settings    []json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("reading the instance: %w", err)
	}
	a.Report("Instance %s, version %s, roles %s", output.Printable(answer.ID), output.Printable(answer.Version),
		output.Printable(strings.Join(answer.Roles, ",")))
	return a.PrintAll(answer.Settings, "name", "value", "origin")
}

// SystemReady reads GET /readyz of an instance. Container health checks run it with --here --retry-for=0s.
type SystemReady struct {
	Here bool `help:"Ask the instance of this machine at METERPLEX_ADMIN_ADDR, else METERPLEX_HTTP_ADDR; its certificate may have any name."`
}

// Run prints the instance's dependencies; the exit code says whether it is ready.
func (c *SystemReady) Run(a *app.App) error {
	cfg, _, err := a.Config()
	if err != nil {
		return err
	}
	if c.Here {
		if cfg.URL, err = urlHere(cfg); err != nil {
			return err
		}
	}
	cl := a.ClientFor(cfg.URL, "")
	if c.Here {
		cl.AcceptAnyCertificate()
	}
	raw, err := cl.Do(a.Ctx, client.Request{Method: http.MethodGet, Path: "/readyz", Root: true})
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == "not_ready" {
		a.Complain(p.Error())
		return app.ErrNo
	}
	if err != nil {
		return err
	}
	return a.Object(raw)
}

// urlHere returns where an instance with these settings serves /readyz on its own machine.
func urlHere(cfg config.Config) (string, error) {
	host, port, err := net.SplitHostPort(cmp.Or(cfg.AdminAddr, cfg.HTTPAddr))
	if err != nil {
		return "", fmt.Errorf("the address of the instance: %w", err)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	scheme := "http"
	if cfg.HTTPTLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// showIdentity prints the figures; the exit code says whether they add up.
func showIdentity(a *app.App, l *app.Call) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	var answer struct {
		Holds *bool
		Total json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Holds == nil {
		return fmt.Errorf("the answer does not show whether the balance check holds: %s", raw)
	}
	if a.Flags.Output == "table" { // only the sums; other formats include the partitions
		raw = answer.Total
		a.Report("%s", map[bool]string{true: "The balance check holds.", false: "The balance check does NOT hold."}[*answer.Holds])
	}
	if err := a.Object(raw); err != nil {
		return err
	}
	return app.OrNo(*answer.Holds)
}
