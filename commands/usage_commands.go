package commands

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// UsageCommands is the second way in: usage that comes as messages on the topic
// usage.commands. Its verdicts are those of IngestUsage, and come about in the same
// transaction. Since nobody waits for an answer, what is refused is recorded beside
// what is accepted, once for each message however often that is delivered.
type UsageCommands struct {
	Ingest  *IngestUsage
	Tenants CatalogueReader
	// Told gets the verdicts of what was decided; nil: nobody does.
	Told func(verdicts []EventVerdict)
	// Backlog, where it is set, holds back new usage as it does at the door.
	Backlog func() (waiting, bound int64)
}

const (
	// maxTogether bounds the events of one tenant that are stored together.
	maxTogether = domain.MaxBatch
	// maxTenants is how many tenants' usage is stored side by side.
	maxTenants = 8
)

// Process decides a batch of messages. Nil means that every verdict is durable and
// the messages may be acknowledged; an error, which is never about what a message
// holds, that they must come again.
func (c *UsageCommands) Process(ctx context.Context, records []events.Record) error {
	if c.Backlog != nil {
		if waiting, bound := c.Backlog(); waiting > bound {
			return fmt.Errorf("%w: %d events wait to be published", ErrUnavailable, waiting)
		}
	}
	groups := byTenant(records)
	errs := make([]error, len(groups))
	slots := make(chan struct{}, maxTenants)
	var wait sync.WaitGroup
	for i := range groups {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			errs[i] = c.take(ctx, &groups[i])
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// tenantMessages are those of one tenant, in their order.
type tenantMessages struct {
	named    string // as the messages name it
	messages []*message
}

func byTenant(records []events.Record) []tenantMessages {
	var groups []tenantMessages
	place := map[string]int{}
	for i := range records {
		m := newMessage(&records[i])
		n, ok := place[m.tenant]
		if !ok {
			n = len(groups)
			place[m.tenant] = n
			groups = append(groups, tenantMessages{named: m.tenant})
		}
		groups[n].messages = append(groups[n].messages, m)
	}
	return groups
}

// take decides one tenant's messages. What belongs to no tenant is the platform's.
func (c *UsageCommands) take(ctx context.Context, g *tenantMessages) error {
	by := Caller{TenantID: events.Platform, Actor: events.Actor{Type: "service", ID: events.GroupUsageCommands}}
	tenant, err := c.tenant(ctx, g.named)
	if err != nil {
		return err
	}
	if tenant == nil {
		unknown := refuse("tenant_not_found", "", "no such tenant: the header mp-tenant, else the key, must be a tenant's id")
		for _, m := range g.messages {
			m.refuse(unknown)
		}
		return c.decide(ctx, by, g.messages, nil)
	}
	by.TenantID, by.Residency = tenant.ID, tenant.DataResidency
	var barred *domain.Error
	if tenant.Status == domain.TenantSuspended {
		barred = refuse("tenant_suspended", "", "the tenant is suspended")
	}
	for _, m := range g.messages {
		m.named = "" // it is the event's own
		m.decode()
	}
	return c.decide(ctx, by, g.messages, barred)
}

// tenant finds the tenant that messages name; nil where there is none.
func (c *UsageCommands) tenant(ctx context.Context, named string) (*domain.Tenant, error) {
	id, err := uuid.Parse(named)
	if err != nil || len(named) != len(uuid.Nil.String()) || id == events.Platform {
		return nil, nil
	}
	tenant, err := c.Tenants.Tenant(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("looking up the tenant of a message: %w", err)
	}
	return tenant, nil
}

// entry is an item with the message that it came in.
type entry struct {
	*message
	item domain.BatchItem
}

// decide stores the messages' events in their order, as many at once as fit.
func (c *UsageCommands) decide(ctx context.Context, by Caller, messages []*message, barred *domain.Error) error {
	var entries []entry
	for _, m := range messages {
		for _, item := range m.items {
			entries = append(entries, entry{m, item})
		}
	}
	for len(entries) > 0 {
		n := min(len(entries), maxTogether)
		if err := c.store(ctx, by, entries[:n], barred); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

func (c *UsageCommands) store(ctx context.Context, by Caller, entries []entry, barred *domain.Error) error {
	items := make([]domain.BatchItem, len(entries))
	for i := range entries {
		items[i] = entries[i].item
	}
	in := &inbox{barred: barred, pending: func(i int, refusal *domain.Error) events.Pending {
		e := &entries[i]
		p := events.Pending{TenantID: by.TenantID, DedupeKey: events.KeyRefused(e.id, e.sum, e.item.Index)}
		if refusal == nil {
			return p
		}
		p.Subject, p.Actor, p.Residency = events.UsageRefused, by.Actor, by.Residency
		p.OccurredAt, p.CorrelationID = c.Ingest.Now(), e.trace
		p.EventID = c.Ingest.NewID(p.OccurredAt)
		p.Payload = e.refusal(refusal)
		return p
	}}
	verdicts, err := c.Ingest.do(ctx, by, items, in)
	if err != nil {
		return err
	}
	if c.Told != nil {
		c.Told(verdicts)
	}
	return nil
}
