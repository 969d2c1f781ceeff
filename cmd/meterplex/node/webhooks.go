package node

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/infra/postgres/store"
	sending "github.com/meterplex/meterplex/infra/webhook"
)

func (n *Node) webhookStore() *store.Webhooks { return &store.Webhooks{Store: n.store, NewID: newID} }

// webhooks returns the command that changes webhooks.
func (n *Node) webhooks() *webhooks.Commands {
	return &webhooks.Commands{Store: n.webhookStore(), Addresses: webhook.Addresses{Allowed: n.cfg.WebhookAllow}, Now: time.Now,
		NewID: newID, NewSecret: newSecret,
		Wake: n.deliveryRequests.Notify}
}

// deliverWebhooks sends the deliveries of webhooks until ctx ends.
func (n *Node) deliverWebhooks(ctx context.Context) error {
	to := sending.Config{Addresses: webhook.Addresses{Allowed: n.cfg.WebhookAllow}}
	n.traceWebhooks(&to)
	sender := sending.NewSender(to)
	defer sender.Close()
	d := &webhooks.Deliverer{Queue: n.webhookStore(), Webhooks: n.webhooks(), Sender: sender, NewID: newID, Requests: n.deliveryRequests,
		Ticks: n.ticks, Sent: n.metrics.WebhookSent,
		Disabled: n.metrics.WebhookDisabled, Logger: n.logger}
	return d.Run(ctx)
}
