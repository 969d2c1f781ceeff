package app

import (
	"encoding/json"
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// NewClient returns a client with the configured URL and key.
func (a *App) NewClient() (*client.Client, error) {
	cfg, _, err := a.Config()
	if err != nil {
		return nil, err
	}
	return a.ClientFor(cfg.URL, cfg.Key), nil
}

func (a *App) ClientFor(base, key string) *client.Client {
	c := client.New(base, key, a.Flags.RetryFor, a.Report)
	c.Reason = a.reason
	return c
}

func (a *App) printer() output.Printer { return output.Printer{Format: a.Flags.Output, Out: a.Stdout} }

// Rows returns a printer for a list.
func (a *App) Rows(columns ...string) *output.Rows { return a.printer().Rows(columns...) }

// Object prints one JSON object.
func (a *App) Object(raw json.RawMessage) error { return a.printer().Object(raw) }

// List prints up to limit rows of a list; 0 means all.
func (a *App) List(path string, query url.Values, limit int, columns ...string) error {
	c, err := a.NewClient()
	if err != nil {
		return err
	}
	p := a.Rows(columns...)
	if err := c.Each(a.Ctx, path, query, limit, p.Row); err != nil {
		return err
	}
	return a.Close(p, NoRows)
}

// NoRows is the message beside the table of an empty list.
const NoRows = "No rows."

// Close completes a list, and reports the message none if it is a table without rows.
func (a *App) Close(p *output.Rows, none string) error {
	if p.Empty() {
		a.Report("%s", none)
	}
	return p.Close()
}

// Get reads a resource.
func (a *App) Get(path string, query url.Values) (json.RawMessage, error) {
	c, err := a.NewClient()
	if err != nil {
		return nil, err
	}
	return c.Get(a.Ctx, path, query)
}

// Show prints one resource.
func (a *App) Show(path string, query url.Values) error {
	raw, err := a.Get(path, query)
	if err != nil {
		return err
	}
	return a.Object(raw)
}

// Create posts a body with the Idempotency-Key once and prints the response.
func (a *App) Create(path, once string, body any) error {
	c, err := a.NewClient()
	if err != nil {
		return err
	}
	raw, err := c.Post(a.Ctx, path, once, body)
	if err != nil {
		return err
	}
	return a.Object(raw)
}

// PrintAll prints rows.
func (a *App) PrintAll(list []json.RawMessage, columns ...string) error {
	rows, err := a.Filled(list, columns...)
	if err != nil {
		return err
	}
	return rows.Close()
}

// Filled returns a list that has these rows, for the caller to close.
func (a *App) Filled(list []json.RawMessage, columns ...string) (*output.Rows, error) {
	rows := a.Rows(columns...)
	for _, row := range list {
		if err := rows.Row(row); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
