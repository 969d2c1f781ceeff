package store

import (
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// The reason for which the service disabled a webhook is that of no later change: the events of these hold the operator's own.
func TestAChangeOfADisabledWebhookHasItsOwnReason(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	w := f.create(tenant, newReceiver(t, always(410)).URL)
	f.crossed(tenant, 1)
	f.run(f.deliverer(f.store))
	f.until("disabled", func() bool { return f.read(tenant, w.ID).Status == events.WebhookDisabled })
	for url, reason := range map[string]string{"https://example.com/moved": "the receiver moved", "https://example.com/": ""} {
		_, err := f.webhooks.Change(t.Context(), commands.Request{Reason: reason}, tenant, w.ID, commands.ChangeWebhook{URL: &url})
		f.must(err)
		f.lastChange(w.ID, events.WebhookDisabled, reason)
	}
	_, err := f.webhooks.Rotate(t.Context(), commands.Request{Reason: "leaked"}, tenant, w.ID, 0)
	f.must(err)
	f.lastChange(w.ID, events.WebhookDisabled, "leaked")
	if reason := f.read(tenant, w.ID).Reason; reason != domain.WebhookGone {
		t.Errorf("the webhook is disabled because %q", reason)
	}
}
