package simulation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
)

// Keys that end while an instance, which has admitted requests with them, is frozen.

// endedIDs begin the ids of events that are sent with keys which end.
const endedIDs = "with-key-"

// keyClient sends usage with the key of a tenant until it is refused. A second process ends the key meanwhile.
func (s *sim) keyClient(n int, tenant uuid.UUID) {
	key := uuid.NewSHA1(tenant, []byte("key"))
	s.endKey(n, tenant, key)
	p, name := s.newProc(fmt.Sprint("key-", n)), fmt.Sprint(endedIDs, n, "-")
	p.run(func() {
		for i := 0; i < 6; i++ {
			r := request{tenant: tenant, items: []usageItem{{id: fmt.Sprint(name, i), feature: featureCounts, amount: 1}}}
			if !s.sendWithKey(p, key, r) {
				break
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; return nil }})
	})
}

// sendWithKey sends a request until it is answered. It returns false once the key is refused.
func (s *sim) sendWithKey(p *proc, key uuid.UUID, r request) (goesOn bool) {
	items, err := intake.DecodeBatch(r.body())
	if err != nil {
		panic(err)
	}
	for {
		var door *metering.IngestUsage
		var life int
		by, frozen := commands.Caller{TenantID: r.tenant, Residency: events.ResidencyUnspecified}, time.Duration(0)
		admit := func(opOutcome) error {
			door, life = s.doors[s.rng.IntN(len(s.doors))], s.life
			if s.db.ended[key] {
				return domain.Unauthenticated()
			}
			by.Admission = commands.Admission{TenantID: r.tenant, KeyID: key}
			if s.rng.IntN(4) > 0 { // the place of the catalogue is known
				h := &s.db.heads[events.PartitionOf(r.tenant)]
				by.Admission.Seen = commands.CatalogueAt{Epoch: h.epoch, Position: max(h.topics[events.TopicCatalogue-1],
					h.topics[events.TopicBilling-1])}
			}
			if s.chance(10 * s.w.freeze) {
				s.count("frozen after admission")
				frozen = time.Duration(s.rng.IntN(6000)) * time.Millisecond
			}
			s.model.send(r)
			return nil
		}
		err := p.do(&operation{what: "admit", effect: admit})
		if err == nil && frozen > 0 && !p.idle("frozen", frozen, never) {
			return false
		}
		var verdicts []metering.EventVerdict
		if err == nil {
			verdicts, err = door.Do(p.ctx, by, items)
		}
		switch refusal := (*domain.Error)(nil); {
		case errors.As(err, &refusal):
			s.count("refused: the key has ended")
			return false
		case err == nil:
			return p.do(&operation{what: "answered", effect: func(opOutcome) error {
				if s.life == life {
					s.model.answer(r, verdicts)
				}
				return nil
			}}) == nil
		}
		if s.count("sent again"); !p.idle("pause", 200*time.Millisecond, never) {
			return false
		}
	}
}

// endKey ends a key, as catalogue.Commands does: by an event, which changes the row in its transaction under the head's lock.
func (s *sim) endKey(n int, tenant, key uuid.UUID) {
	p := s.newProc(fmt.Sprint("end-of-key-", n))
	p.start = func() { s.endKey(n, tenant, key) }
	to := s.storeOf(p)
	p.run(func() {
		if !p.idle("think", time.Duration(tenant[0])*16*time.Millisecond, never) {
			return
		}
		now := time.Now()
		ended := events.APIKey{ID: key, TenantID: tenant, Mode: domain.ModeLive, Scopes: []string{}, RevokedAt: &now}
		for to.ChangeCatalogue(p.ctx, tenant, func(tx catalogue.Tx) error {
			id := p.newID()
			_, err := tx.Append(events.Pending{EventID: id, DedupeKey: events.KeyEvent(id), Subject: events.APIKeyRevoked, TenantID: tenant,
				Residency:     events.ResidencyUnspecified,
				CorrelationID: tenant, Actor: actors[0], OccurredAt: now, Payload: mustJSON(ended)})
			return err
		}) != nil {
			if !p.idle("pause", 200*time.Millisecond, never) {
				return
			}
		}
		_ = p.do(&operation{what: "done", effect: func(opOutcome) error { s.model.open--; p.start = nil; return nil }})
	})
}

// endsKey begins the statement that ends a key, and readsAdmitted the one that compares what admission saw.
const (
	endsKey       = "INSERT INTO api_keys"
	readsAdmitted = "SELECT coalesce(k.ended, true)"
)

// keyQuery executes the statements on keys, nil for others.
func (tx *simTx) keyQuery(text string, args []any) *simRows {
	switch {
	case strings.HasPrefix(text, endsKey):
		var key events.APIKey
		if err := json.Unmarshal(args[0].(pgx.NamedArgs)["event"].(json.RawMessage), &key); err != nil {
			panic(err)
		}
		return tx.later(func(tx *simTx) {
			tx.p.s.count("key ended")
			tx.p.s.db.ended[key.ID] = true
		})
	case strings.HasPrefix(text, readsAdmitted):
		out, active := simAnswer(), domain.TenantActive
		for _, key := range args[1].([]uuid.UUID) {
			ended := tx.p.s.db.ended[key] && strings.Contains(text, "q.id = a.key_id")
			out.list = append(out.list, []any{ended, (*time.Time)(nil), (*time.Time)(nil), &active})
		}
		return out
	case strings.Contains(text, "erased_body("):
		return simAnswer() // no tenant is archived
	}
	return nil
}

// checkKeys checks that a transaction records nothing with a key that has ended.
func (db *simDB) checkKeys(tx *simTx) {
	for i := range tx.w.rows {
		row := &tx.w.rows[i]
		if strings.HasPrefix(row.key.key, events.KeyUsage(endedIDs)) && row.subject == events.UsageRecorded &&
			db.ended[uuid.NewSHA1(row.key.tenant, []byte("key"))] {
			db.s.fail("%s, %s was recorded with a key that had ended", row.at, row.key.key)
		}
	}
}
