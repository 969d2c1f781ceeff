package simulation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// simTenants knows every tenant.
type simTenants struct{ catalogue.Reader }

func (simTenants) Tenant(_ context.Context, id uuid.UUID) (*domain.Tenant, error) {
	return &domain.Tenant{ID: id, Status: domain.TenantActive, DataResidency: events.ResidencyUnspecified}, nil
}

// messages are the requests of the last client, as a producer outside wrote them.
func (s *sim) messages() []request { return s.plan.clients[len(s.plan.clients)-1] }

func (r *request) record(offset int) events.Record {
	return events.Record{Topic: events.TopicUsageCommands, Offset: int64(offset), Key: []byte(r.tenant.String()), Value: r.body()}
}

// startCommands starts a reader of usage.commands. It keeps no checkpoint: the log
// recognizes redelivered messages.
func (s *sim) startCommands(name string) {
	p := s.newProc(name)
	p.start = func() { s.startCommands(name) }
	reader := &metering.UsageCommands{Ingest: s.ingestOf(p), Tenants: simTenants{}}
	group := ckptKey{events.GroupUsageCommands, 0}
	all, at := s.messages(), int(s.pipe.offsets[ckptKey{events.GroupUsageCommands, 0}])
	p.run(func() {
		for {
			var life int
			err := p.do(&operation{what: "fetch message", kind: kindFetch, until: time.Now().Add(time.Hour), ready: func() bool {
				return at < len(all)
			}, effect: func(opOutcome) error {
				if at > 0 && s.chance(s.w.rewind) || at == len(all) {
					s.count("message again")
					at--
				}
				s.model.send(all[at])
				life = s.life
				return nil
			}})
			for err == nil {
				if err = reader.Process(p.ctx, []events.Record{all[at].record(at)}); err == nil {
					break
				}
				if p.idle("pause", 100*time.Millisecond, never) {
					err = nil
				}
			}
			if err == nil {
				err = p.do(&operation{what: "acknowledge message", kind: kindAuto, effect: func(opOutcome) error {
					if s.life == life { // a failover may have lost it
						s.model.delivered(all[at], at)
					}
					if before := s.pipe.offsets[group]; int64(at+1) > before {
						s.pipe.offsets[group] = int64(at + 1)
						if at+1 == len(all) {
							s.model.open--
						}
					}
					return nil
				}})
			}
			if err == nil {
				at++
			}
			if err != nil && !p.idle("rest", 100*time.Millisecond, never) {
				return
			}
		}
	})
}

// delivered checks the result of a message: each of its events is in the log, or its
// refusal is, and never both.
func (m *model) delivered(r request, offset int) {
	id := fmt.Sprintf("%s/0/%d", events.TopicUsageCommands.Name(), offset)
	for n, item := range r.items {
		row := m.s.db.keys[simKey{r.tenant, events.KeyUsage(item.id)}]
		refusal := m.s.db.keys[simKey{r.tenant, events.KeyRefused(id, sha256.Sum256(r.body()), n)}]
		if refused := item.feature == featureNone; (row == nil) != refused || (refusal != nil) != refused {
			m.s.fail("message %s: %v is in the log %t, and refused there %t", id, item, row != nil, refusal != nil)
		}
	}
}
