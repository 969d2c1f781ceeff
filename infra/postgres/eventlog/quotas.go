package eventlog

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/dedupe"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/tables"
)

// Histories are the histories of tenants by which quota requests are decided.
type Histories interface {
	// Known returns the cached histories of tenants, however old.
	Known(tenants []uuid.UUID) map[uuid.UUID]domain.TenantHistory
	// Of returns the histories of tenants as of the heads that the caller has locked. Tenants whose history cannot be
	// read are missing.
	Of(ctx context.Context, query Query, tenants []uuid.UUID, heads []events.InlineStretch) (map[uuid.UUID]domain.TenantHistory, error)
}

// quotaRequests decides the quota requests of a group. Accounts are read behind the locks of the heads: those that cached histories name
// in the same round trip, the others, after a change of a subscription, in one more.
type quotaRequests struct {
	group     *group
	ledger    *domain.Ledger
	histories map[uuid.UUID]domain.TenantHistory
	due       map[domain.AccountKey]*duePage
}

// newQuotaRequests returns nil if the group has no quota requests.
func newQuotaRequests(g *group) *quotaRequests {
	if !g.hasQuotas {
		return nil
	}
	return &quotaRequests{group: g, ledger: domain.NewLedger(g.log.now()), due: map[domain.AccountKey]*duePage{}}
}

// tenants lists the tenants of quota requests, each once.
func (a *quotaRequests) tenants() (list []uuid.UUID) {
	for i := range a.group.members {
		if s := a.group.members[i].submitted; s.Quota != nil && (len(list) == 0 || list[len(list)-1] != s.TenantID) &&
			!slices.Contains(list, s.TenantID) {
			list = append(list, s.TenantID)
		}
	}
	return list
}

// keys lists the accounts that the quota requests need by some histories and that are not loaded, each once.
func (a *quotaRequests) keys(histories map[uuid.UUID]domain.TenantHistory) (keys []domain.AccountKey) {
	listed := map[domain.AccountKey]bool{}
	for i := range a.group.members {
		s := a.group.members[i].submitted
		if s.Quota == nil {
			continue
		}
		if h, known := histories[s.TenantID]; known {
			if key, ok := a.ledger.Account(h.History, s.Quota.LedgerRequest); ok && !listed[key] && !a.ledger.Has(key) {
				listed[key] = true
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// reading returns the reads of the accounts that cached histories name, and of reservations, to be sent behind the
// locks of the heads.
func (a *quotaRequests) reading() []*LockedRead {
	if a == nil {
		return nil
	}
	return append(a.readingReservations(), a.readingAccounts())
}

func (a *quotaRequests) readingAccounts() *LockedRead {
	keys := a.keys(a.group.log.cfg.Histories.Known(a.tenants()))
	if len(keys) == 0 {
		return nil
	}
	return &LockedRead{tables.ReadAccounts(keys), func(rows pgx.Rows) error {
		return tables.ScanAccounts(rows, keys, a.ledger)
	}}
}

// complete reads the accounts that the first round trip did not: usually no query is needed.
func (a *quotaRequests) complete(ctx context.Context, conn server.Session, hs heads) error {
	if a == nil {
		return nil
	}
	a.ledger.DecideAt(a.group.log.now()) // the wait for the locks may have been long
	tenants := a.tenants()
	var err error
	if a.histories, err = a.group.log.cfg.Histories.Of(ctx, conn.Query, tenants, hs.stretches()); err != nil {
		return err
	}
	for tenant, h := range a.histories {
		if len(h.Changes) > 0 {
			a.ledger.LoadPeriods(tenant, &h.PeriodHistory)
		}
	}
	keys := a.keys(a.histories)
	if len(keys) == 0 {
		return nil
	}
	read := tables.ReadAccounts(keys)
	rows, err := conn.Query(ctx, read.SQL, read.Args...)
	if err != nil {
		return err
	}
	return tables.ScanAccounts(rows, keys, a.ledger)
}

// errKnownRefused means that a refused event is a repetition: the group is decided again with all keys looked up.
var errKnownRefused = errors.New("a refused event was recorded before")

// grant decides about members that are stored together, of which those without an outcome may be stored: by the targets of corrections,
// then by limits. If one is refused it returns false, and no member takes effect.
func (d *deciding) grant(ctx context.Context, conn server.Session, from, to int) (granted bool, err error) {
	g := d.group
	d.requested, d.requests = d.requested[:0], d.requests[:0]
	if granted = d.correct(from, to); granted {
		for k := from; k < to; k++ {
			if m := &g.members[k]; m.submitted.Quota != nil && m.outcome.Status == metering.Unknown && g.firstOf(k) == k {
				d.requested, d.requests = append(d.requested, k), append(d.requests, m.submitted.Quota.LedgerRequest)
			}
		}
		if len(d.requests) > 0 {
			granted, err = d.request(ctx, conn, g.members[from].submitted.TenantID)
		}
	}
	if !granted {
		d.forgetTargets()
	}
	return granted, err
}

// request decides d.requests. All are granted, or each refused one is answered.
func (d *deciding) request(ctx context.Context, conn server.Session, tenant uuid.UUID) (granted bool, err error) {
	h, readable := d.quotas.histories[tenant]
	if !readable && slices.ContainsFunc(d.requests, func(r domain.LedgerRequest) bool { return r.Kind.NeedsRoom() }) {
		for _, k := range d.requested {
			d.refuse(k)
			*d.group.members[k].outcome = metering.Outcome{Status: metering.Undecided}
		}
		return false, nil
	}
	decisions, granted, err := d.decideWithRoom(ctx, conn, h.History)
	for n := 0; n < len(decisions) && err == nil; n++ {
		k := d.requested[n]
		if s := d.group.members[k].submitted; granted {
			err = s.Quota.Grant(&s.Pending, &decisions[n])
		} else if decisions[n].Refusal != nil {
			d.deny(k, decisions[n].Refusal)
		}
	}
	return granted, err
}

// deny refuses a member, and stores the refusal if its submitter has no answer to wait for.
func (d *deciding) deny(k int, refusal *domain.Error) {
	d.refuse(k)
	m := &d.group.members[k]
	*m.outcome = metering.Outcome{Status: metering.Denied, Refusal: refusal}
	if m.submitted.Refuse == nil {
		return
	}
	stored := m.submitted.Refuse(refusal)
	r := d.sequence.next(&stored, d.origin[k])
	d.group.rows = append(d.group.rows, r)
	d.known[dedupe.KeyOf(&stored)] = dedupe.Found{Position: r.Position, EventID: stored.EventID}
	*m.outcome = metering.Outcome{Status: metering.Refused, Position: r.Position, Refusal: refusal}
}

// checkRefused looks up the keys of refused events: the repetition of a granted request, or of a recorded correction, gets its first
// answer, whatever the limit or the target is now. No one waits for the answer to an expiry, which another instance may have done.
func (d *deciding) checkRefused(ctx context.Context, conn server.Session, probed bool) error {
	if probed || len(d.refused) == 0 {
		return nil
	}
	pending := make([]*events.Pending, 0, len(d.refused))
	for _, k := range d.refused {
		if s := d.group.members[k].submitted; s.Quota == nil || s.Quota.Kind != domain.Expire {
			pending = append(pending, &s.Pending)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	known, err := dedupe.Probe(ctx, conn, pending)
	if err == nil && len(known) > 0 {
		err = errKnownRefused
	}
	return err
}
