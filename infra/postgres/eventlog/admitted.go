package eventlog

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// An instance may be frozen between admission and append, and the key or its tenant ended meanwhile. Every change of them is an event of
// the catalogue in their partition: while the locked head names the last event that admission knew, they are unchanged, and no table is
// read.

// readAdmittedSQL reads keys and the states of their tenants, in the order of its arguments. LATERAL with LIMIT forces one look-up for
// each.
const readAdmittedSQL = `SELECT coalesce(k.ended, true), k.expires_at, k.revoked_at, t.status
 FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS a (tenant_id, key_id, n)
 LEFT JOIN LATERAL (SELECT q.ended, q.expires_at, q.revoked_at FROM api_keys q WHERE q.id = a.key_id LIMIT 1) k ON true
 LEFT JOIN LATERAL (SELECT q.status FROM tenants q WHERE q.id = a.tenant_id LIMIT 1) t ON true ORDER BY a.n`

// confirms reports whether the locked head shows that the key and its tenant are as they were at admission.
func (h *head) confirms(a *commands.Admission, now time.Time) bool {
	last := max(h.topics[events.TopicCatalogue-1], h.topics[events.TopicBilling-1])
	return a.Seen == commands.CatalogueAt{Epoch: h.epoch, Position: last} && (a.Until == nil || now.Before(*a.Until))
}

// reAdmit returns the read of the present state of keys and tenants. It calls use for each, with nil if requests are still admitted.
func reAdmit(list []*commands.Admission, now func() time.Time, use func(i int, refusal *domain.Error)) *LockedRead {
	if len(list) == 0 {
		return nil
	}
	tenants, keys := make([]uuid.UUID, len(list)), make([]uuid.UUID, len(list))
	for i, a := range list {
		tenants[i], keys[i] = a.TenantID, a.KeyID
	}
	return &LockedRead{server.Statement{SQL: readAdmittedSQL, Args: []any{tenants, keys}}, func(rows pgx.Rows) error {
		i, status, key := 0, new(string), domain.APIKey{}
		_, err := pgx.ForEachRow(rows, []any{&key.Ended, &key.ExpiresAt, &key.RevokedAt, &status}, func() error {
			var tenant *domain.Tenant
			if status != nil {
				tenant = &domain.Tenant{Status: *status}
			}
			switch {
			case list[i].Refusing && (tenant == nil || tenant.Status != domain.TenantArchived):
				use(i, nil)
			case keys[i] == uuid.Nil:
				use(i, tenant.Refuse())
			default:
				key.TenantID = tenants[i]
				use(i, key.Refuse(tenant, now()))
			}
			i++
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading keys: %w", err)
		}
		return nil
	}}
}

// StillAdmitted returns the read that fails with a refusal if the key of a caller, or its tenant, has ended since admission. Nil: the
// caller has no key.
func (l *Log) StillAdmitted(a commands.Admission) *LockedRead {
	if a == (commands.Admission{}) {
		return nil
	}
	var refused *domain.Error
	read := reAdmit([]*commands.Admission{&a}, l.now, func(_ int, refusal *domain.Error) { refused = refusal })
	return &LockedRead{read.Statement, func(rows pgx.Rows) error {
		if err := read.Scan(rows); err != nil {
			return err
		}
		if refused != nil {
			return refused
		}
		return nil
	}}
}

// admissions refuse the submissions of a group whose key or tenant has ended since admission.
type admissions struct {
	group *group
	known map[*commands.Admission]*domain.Error // as read behind the locks; nil: still admitted
}

// reading returns the read of those of which admission knows no state of the catalogue, to be sent behind the locks of the heads.
func (c *admissions) reading() []*LockedRead {
	return c.read(func(s *submission) bool { return s.admission.Seen == commands.CatalogueAt{} })
}

// read returns the read of the selected submissions.
func (c *admissions) read(which func(*submission) bool) []*LockedRead {
	var list []*commands.Admission
	for _, s := range c.group.subs {
		if a := s.admission; a != nil {
			if _, known := c.known[a]; !known && which(s) {
				list = append(list, a)
			}
		}
	}
	read := reAdmit(list, c.group.log.now, func(i int, refusal *domain.Error) {
		if c.known == nil {
			c.known = map[*commands.Admission]*domain.Error{}
		}
		c.known[list[i]] = refusal
	})
	if read == nil {
		return nil
	}
	return []*LockedRead{alongIndexes(), read}
}

// complete reads the others that the heads do not confirm: after a change of the catalogue only.
func (c *admissions) complete(ctx context.Context, conn server.Session, hs heads) error {
	now, b := c.group.log.now(), &pgx.Batch{}
	reads := queueReads(b, c.read(func(s *submission) bool { return !hs[events.PartitionOf(s.tenant)].confirms(s.admission, now) }))
	if len(reads) == 0 {
		return nil
	}
	res := conn.SendBatch(ctx, b)
	defer res.Close()
	if err := scanReads(res, reads); err != nil {
		return err
	}
	return res.Close()
}

// removeEnded removes the refused submissions and answers them, so that they do not end the rest of the group. If COMMIT was sent before,
// their events may be recorded.
func (g *group) removeEnded(c *admissions) (removed bool) {
	if len(c.known) == 0 {
		return false
	}
	var kept []*submission
	ended := map[*submission]error{}
	for _, s := range g.subs {
		if refusal := c.known[s.admission]; refusal == nil {
			kept = append(kept, s)
		} else if g.sent {
			ended[s] = fmt.Errorf("%w: %v", commands.ErrUnavailable, refusal)
		} else {
			ended[s] = refusal
		}
	}
	if len(ended) == 0 {
		return false
	}
	g.fill(kept)
	for s, err := range ended {
		s.end(err)
	}
	return true
}
