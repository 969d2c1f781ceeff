package tenants

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/domain/webhook"
	sending "github.com/meterplex/meterplex/infra/webhook"
)

// WebhooksCmd groups the commands of webhooks that are not one request.
type WebhooksCmd struct {
	Listen Listen `cmd:"" help:"Send the events of webhooks to a receiver on this machine, as the service would."`
}

// Listen sends events to a receiver that the service cannot reach.
type Listen struct {
	ForwardTo string   `required:"" placeholder:"URL" help:"The receiver, e.g. http://localhost:3000/hook."`
	Tenant    string   `placeholder:"ID" aliases:"tenant-id" help:"Of one tenant; the key of a tenant names it already."`
	Event     []string `placeholder:"TYPE" help:"Types of events, e.g. period.closed; not given: all."`
}

// Help returns the long help text.
func (Listen) Help() string {
	return `Follows the events that are recorded from now on, and sends each once, as the service does. No webhook is created.
The signing secret stays the same for the same key.

    meterplex webhooks listen --forward-to http://localhost:3000/hook --tenant ID --event threshold.crossed

A tenant's key needs the scope events:read, an operator's audit. Ctrl-C ends it, with exit code 0.`
}

// Run sends events until ctx ends. After a broken connection it continues behind the last event.
func (c *Listen) Run(a *app.App) error {
	if u, err := url.Parse(c.ForwardTo); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("--forward-to %q: write a URL, e.g. http://localhost:3000/hook", c.ForwardTo)
	}
	if len(c.Event) == 0 {
		c.Event = webhook.Events()
	}
	kinds, refusal := webhook.CheckEvents(c.Event)
	if refusal != nil {
		return errors.New("--event: " + strings.TrimPrefix(refusal.Message, "events "))
	}
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	const path = "/events/stream"
	q := url.Values{"tenantId": {c.Tenant}, "follow": {"false"}}
	end, err := cl.Follow(a.Ctx, path, q, "", false, func(json.RawMessage) error { return nil })
	if err != nil {
		return err
	}
	sender := sending.NewSender(sending.Config{Addresses: webhook.Addresses{Allowed: []netip.Prefix{ // the user names the receiver
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}})
	defer sender.Close()
	secret := secretOf(cl.Key)
	a.Report("The signing secret is %s", secret)
	a.Report("Sending %s to %s, until Ctrl-C …", strings.Join(kinds, ", "), output.Printable(c.ForwardTo))
	rows, seen := a.Rows("at", "type", "position", "eventId", "status", "durationMs", "error"), map[string]bool{}
	q.Set("follow", "true")
	_, err = cl.Follow(a.Ctx, path, q, end, true, func(envelope json.RawMessage) error {
		list, err := webhook.DueOf(envelope)
		for i := range list {
			d := &list[i]
			id := d.EventID.String()
			if seen[id] || !slices.Contains(kinds, d.Type) { // refusals of a code and feature have one id for a minute
				continue
			}
			seen[id] = true
			d.URL, d.Operators, d.Secrets = c.ForwardTo, true, []string{secret}
			m, err := d.Message(a.Now())
			if err != nil {
				return err
			}
			result := sender.Send(a.Ctx, m)
			if a.Ctx.Err() != nil {
				return a.Ctx.Err()
			}
			if err := c.print(a, rows, d, m.At, result); err != nil {
				return err
			}
		}
		return err
	})
	return err
}

// secretOf derives a signing secret from a key, which it does not reveal: a receiver needs it once.
func secretOf(key string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte("meterplex webhooks listen"))
	return "whsec_" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// print prints a delivery at once.
func (c *Listen) print(a *app.App, rows *output.Rows, d *webhook.Due, at time.Time, r webhook.Result) error {
	status := fmt.Sprint(r.Status)
	if r.Status == 0 {
		status = r.Error
	}
	if a.Flags.Output == "table" { // rows of a table wait for its end
		_, err := fmt.Fprintf(a.Stdout, "%s  %-19s %-12s %s  %s  %d ms\n", at.Format(time.TimeOnly), d.Type, d.Position, d.EventID, status,
			r.Duration.Milliseconds())
		return err
	}
	raw, err := json.Marshal(map[string]any{"at": at.UTC(), "type": d.Type, "position": d.Position, "eventId": d.EventID,
		"status": r.Status, "durationMs": r.Duration.Milliseconds(), "error": r.Error})
	if err != nil {
		return fmt.Errorf("write a delivery: %w", err)
	}
	if a.Flags.Output == "json" {
		return output.PrintCompact(a.Stdout, raw)
	}
	return rows.Row(raw)
}
