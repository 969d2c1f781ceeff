package main

import (
	"encoding/json"
	"net/url"
)

// newClient returns a client with the configured URL and key.
func (a *app) newClient() (*client, error) {
	cfg, _, err := a.config()
	if err != nil {
		return nil, err
	}
	return a.clientFor(cfg.URL, cfg.Key), nil
}

func (a *app) clientFor(base, key string) *client {
	return newClient(base, key, a.flags.RetryFor, a.say)
}

func (a *app) printer() printer { return printer{a.flags.Output, a.stdout} }

// rows returns a printer for a list.
func (a *app) rows(columns ...string) *rowPrinter { return a.printer().rows(columns...) }

// object prints one JSON object.
func (a *app) object(raw json.RawMessage) error { return a.printer().object(raw) }

// list prints up to limit rows of a list; 0 means all.
func (a *app) list(path string, query url.Values, limit int, columns ...string) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	p := a.rows(columns...)
	if err := c.each(a.ctx, path, query, limit, p.row); err != nil {
		return err
	}
	return p.close()
}

// show prints one resource.
func (a *app) show(path string, query url.Values) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := c.get(a.ctx, path, query)
	if err != nil {
		return err
	}
	return a.object(raw)
}

// change sends a body and prints the response.
func (a *app) change(method, path string, body any) error {
	c, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := c.send(a.ctx, method, path, nil, body)
	if err != nil {
		return err
	}
	return a.object(raw)
}

// create posts a body with the Idempotency-Key once and prints the response.
func (a *app) create(path, once string, body any) error {
	raw, err := a.posted(path, once, body)
	if err != nil {
		return err
	}
	return a.object(raw)
}

func (a *app) posted(path, once string, body any) (json.RawMessage, error) {
	c, err := a.newClient()
	if err != nil {
		return nil, err
	}
	return c.post(a.ctx, path, once, body)
}
