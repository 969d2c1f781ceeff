package metering

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
)

// UsageCommands ingests usage from messages on the topic usage.commands. It reaches
// the same verdicts as IngestUsage, in the same transaction. A message gets no
// response, so refusals are recorded beside the accepted events, once for each
// message, however often it is delivered.
type UsageCommands struct {
	Ingest  *IngestUsage
	Tenants commands.TenantReader
	// Decided is called with the class of a tenant, "" for messages without a known tenant, and its verdicts; nil: no call.
	Decided func(class string, verdicts []EventVerdict)
	// Backlog, if set, makes Process fail while waiting exceeds bound, as HTTP ingest does.
	Backlog func() (waiting, bound int64)
}

const (
	// maxTogether bounds the events of one tenant that are stored together.
	maxTogether = intake.MaxBatch
	// maxTenants bounds the tenants whose usage is stored concurrently.
	maxTenants = 8
)

// Process decides a batch of messages. Nil means that every verdict is durable and
// the messages may be acknowledged. An error means that they must be delivered
// again; the content of a message never causes one.
func (c *UsageCommands) Process(ctx context.Context, records []events.Record) error {
	if c.Backlog != nil {
		if waiting, bound := c.Backlog(); waiting > bound {
			return fmt.Errorf("%w: %d events wait to be published", commands.ErrUnavailable, waiting)
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
			errs[i] = c.decideTenant(ctx, &groups[i])
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// tenantMessages holds the messages of one tenant, in order.
type tenantMessages struct {
	named    string // the tenant's name in the messages
	messages []*message
}

func byTenant(records []events.Record) []tenantMessages {
	var groups []tenantMessages
	index := map[string]int{}
	for i := range records {
		m := newMessage(&records[i])
		named := m.tenant
		if id := tenantID(named); id != events.Platform {
			named = id.String() // an id may be written with capitals
		}
		n, ok := index[named]
		if !ok {
			n = len(groups)
			index[named] = n
			groups = append(groups, tenantMessages{named: named})
		}
		groups[n].messages = append(groups[n].messages, m)
	}
	return groups
}

// decideTenant decides one tenant's messages. Messages without a known tenant belong to the
// platform.
func (c *UsageCommands) decideTenant(ctx context.Context, g *tenantMessages) error {
	by := commands.Caller{TenantID: events.Platform, Actor: events.Actor{Type: "service", ID: events.GroupUsageCommands}}
	tenant, err := c.tenant(ctx, g.named)
	if err != nil {
		return err
	}
	if tenant == nil {
		unknown := domain.Refuse("tenant_not_found", "", "no such tenant: the header mp-tenant, else the key, must be a tenant's id")
		for _, m := range g.messages {
			m.refuse(unknown)
		}
		return c.decide(ctx, by, "", g.messages, nil)
	}
	by.TenantID, by.Residency = tenant.ID, tenant.DataResidency
	by.Admission.TenantID = tenant.ID
	var barred *domain.Error
	if tenant.Status != domain.TenantActive {
		by.Admission.Refusing = true // only refusals are recorded
		barred = domain.Refuse("tenant_suspended", "", "the tenant is suspended")
	}
	bare := tenant.Status == domain.TenantArchived // its personal data may be erased: no more is recorded, not even a hash
	if bare {
		by.Admission = commands.Admission{}
	}
	for _, m := range g.messages {
		m.named = "" // the tenant is known, and is the event's tenant
		if bare {
			m.bare, m.sum = true, sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", m.Topic.Name(), m.Partition, m.Offset)) // its offset alone
			m.refuse(barred)
			continue
		}
		m.decode()
	}
	return c.decide(ctx, by, tenant.Class, g.messages, barred)
}

// tenantID reads the id of a tenant; events.Platform for a text that is no id.
func tenantID(named string) uuid.UUID {
	id, err := uuid.Parse(named)
	if err != nil || len(named) != len(uuid.Nil.String()) {
		return events.Platform
	}
	return id
}

// tenant finds the tenant that messages name; nil for an unknown tenant.
func (c *UsageCommands) tenant(ctx context.Context, named string) (*domain.Tenant, error) {
	id := tenantID(named)
	if id == events.Platform {
		return nil, nil
	}
	tenant, err := c.Tenants.Tenant(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("looking up the tenant of a message: %w", err)
	}
	return tenant, nil
}

// entry is an item with its message.
type entry struct {
	*message
	item intake.BatchItem
}

// decide stores the messages' events in order, at most maxTogether at once.
func (c *UsageCommands) decide(ctx context.Context, by commands.Caller, class string, messages []*message, barred *domain.Error) error {
	var entries []entry
	for _, m := range messages {
		for _, item := range m.items {
			entries = append(entries, entry{m, item})
		}
	}
	for len(entries) > 0 {
		n := min(len(entries), maxTogether)
		if err := c.store(ctx, by, class, entries[:n], barred); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

func (c *UsageCommands) store(ctx context.Context, by commands.Caller, class string, entries []entry, barred *domain.Error) error {
	items := make([]intake.BatchItem, len(entries))
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
	verdicts, err := c.Ingest.do(ctx, by, items, in, false)
	if err != nil {
		return err
	}
	if c.Decided != nil {
		c.Decided(class, verdicts)
	}
	return nil
}
