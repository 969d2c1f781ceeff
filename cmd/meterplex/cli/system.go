package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// SystemCmd groups the system commands.
type SystemCmd struct {
	Show      SystemShow      `cmd:"" help:"Show the log's id, the lives of the database server, and where each partition's epoch begins."`
	Ready     SystemReady     `cmd:"" help:"Show whether an instance is ready, and its dependencies. Waits for --retry-for. Exit code 1 if it is not ready."`
	Overview  SystemOverview  `cmd:"" help:"Show rates, lags and items that need attention."`
	Instances SystemInstances `cmd:"" help:"List the instances of the last day, with their roles, versions and states."`
	Instance  SystemInstance  `cmd:"" help:"Show the instance that answers: its roles, its version and its settings, without secrets."`
	Identity  SystemIdentity  `cmd:"" help:"Show that no event is lost: accepted = aggregated + rejected + in flight + parked. Exit code 1 if it does not hold."`
}

// SystemShow reads GET /system.
type SystemShow struct{}

// Run prints the log's id and the server's lives; other formats include the partitions.
func (c *SystemShow) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.Get(a.ctx, "/system", nil)
	if err != nil {
		return err
	}
	if a.flags.Output != "table" {
		return a.object(raw)
	}
	var answer struct {
		LogID string            `json:"logId"`
		Lives []json.RawMessage `json:"lives"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("reading the system: %w", err)
	}
	a.report("Log %s. Lives of the database server, newest first:", answer.LogID)
	p := a.rows("reason", "startedAt", "raisedAt", "timeline", "systemIdentifier", "partitions")
	for _, life := range answer.Lives {
		if err := p.Row(life); err != nil {
			return err
		}
	}
	return p.Close()
}

// SystemInstances reads GET /system/instances.
type SystemInstances struct {
	Limit int `default:"100" help:"Rows to print; 0 prints all."`
}

// Run prints the instances.
func (c *SystemInstances) Run(a *app) error {
	return a.list("/system/instances", nil, c.Limit, "id", "state", "version", "roles", "startedAt", "seenAt", "endedAt")
}

// SystemInstance reads GET /system/instance.
type SystemInstance struct{}

// Run prints the settings of the instance; other formats than table include its roles and version.
func (c *SystemInstance) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.Get(a.ctx, "/system/instance", nil)
	if err != nil {
		return err
	}
	if a.flags.Output != "table" {
		return a.object(raw)
	}
	var answer struct {
		ID, Version string
		Roles       []string
		Settings    []json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("reading the instance: %w", err)
	}
	a.report("Instance %s, version %s, roles %s", output.Printable(answer.ID), output.Printable(answer.Version), output.Printable(strings.Join(answer.Roles, ",")))
	p := a.rows("name", "value", "origin")
	for _, setting := range answer.Settings {
		if err := p.Row(setting); err != nil {
			return err
		}
	}
	return p.Close()
}

// SystemReady reads GET /readyz of an instance. Container health checks run it with --here --retry-for=0s.
type SystemReady struct {
	Here bool `help:"Ask the instance of this machine, by its own settings: METERPLEX_ADMIN_ADDR, else METERPLEX_HTTP_ADDR, and METERPLEX_HTTP_TLS_CERT. Its certificate may be of any name. --server is not used."`
}

// Run prints the instance's dependencies; the exit code says whether it is ready.
func (c *SystemReady) Run(a *app) error {
	cfg, _, err := a.config()
	if err != nil {
		return err
	}
	if c.Here {
		if cfg.URL, err = urlHere(cfg); err != nil {
			return err
		}
	}
	cl := a.clientFor(cfg.URL, "")
	if c.Here {
		cl.AcceptAnyCertificate()
	}
	raw, err := cl.Do(a.ctx, client.Request{Method: http.MethodGet, Path: "/readyz", Root: true})
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == "not_ready" {
		a.complain(p.Error())
		return errNo
	}
	if err != nil {
		return err
	}
	return a.object(raw)
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

// SystemIdentity shows the identity's figures.
type SystemIdentity struct{}

// Run prints the figures; the exit code says whether they add up.
func (c *SystemIdentity) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := cl.Get(a.ctx, "/system/identity", nil)
	if err != nil {
		return err
	}
	var answer struct {
		Holds *bool
		Total json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Holds == nil {
		return fmt.Errorf("the answer does not show whether the identity holds: %s", raw)
	}
	if a.flags.Output == "table" { // only the sums; other formats include the partitions
		raw = answer.Total
		a.report("%s", map[bool]string{true: "The identity holds.", false: "The identity does NOT hold."}[*answer.Holds])
	}
	if err := a.object(raw); err != nil {
		return err
	}
	if !*answer.Holds {
		return errNo
	}
	return nil
}
