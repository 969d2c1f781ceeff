package cli

import (
	"encoding/json"
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// newClient returns a client with the configured URL and key.
func (a *app) newClient() (*client.Client, error) {
	cfg, _, err := a.config()
	if err != nil {
		return nil, err
	}
	return a.clientFor(cfg.URL, cfg.Key), nil
}

func (a *app) clientFor(base, key string) *client.Client {
	c := client.New(base, key, a.flags.RetryFor, a.report)
	c.Reason = a.reason
	return c
}

func (a *app) printer() output.Printer { return output.Printer{Format: a.flags.Output, Out: a.stdout} }

// rows returns a printer for a list.
func (a *app) rows(columns ...string) *output.Rows { return a.printer().Rows(columns...) }

// object prints one JSON object.
func (a *app) object(raw json.RawMessage) error { return a.printer().Object(raw) }

// list prints up to limit rows of a list; 0 means all.
func (a *app) list(path string, query url.Values, limit int, columns ...string) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	p := a.rows(columns...)
	if err := c.Each(a.ctx, path, query, limit, p.Row); err != nil {
		return err
	}
	return p.Close()
}

// get reads a resource.
func (a *app) get(path string, query url.Values) (json.RawMessage, error) {
	c, err := a.newClient()
	if err != nil {
		return nil, err
	}
	return c.Get(a.ctx, path, query)
}

// show prints one resource.
func (a *app) show(path string, query url.Values) error {
	raw, err := a.get(path, query)
	if err != nil {
		return err
	}
	return a.object(raw)
}

// create posts a body with the Idempotency-Key once and prints the response.
func (a *app) create(path, once string, body any) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := c.Post(a.ctx, path, once, body)
	if err != nil {
		return err
	}
	return a.object(raw)
}

// printAll prints rows.
func (a *app) printAll(list []json.RawMessage, columns ...string) error {
	rows := a.rows(columns...)
	for _, row := range list {
		if err := rows.Row(row); err != nil {
			return err
		}
	}
	return rows.Close()
}
