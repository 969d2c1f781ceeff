package simulation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
)

// Dead letters and their retries: the request is recorded, the command router executes
// it. There is no table of letters; its contents are derived from the log.

// commandsConsumer is the command router of a process.
func (s *sim) commandsConsumer(p *proc) projections.Consumer {
	letters := &repair.DeadLetters{Store: s.storeOf(p), Now: s.now, NewID: p.newID}
	return projections.Consumer{Name: events.GroupCommands, Topic: events.TopicCommands,
		Handler: &store.Commands{Log: s.logOf(p), Letters: letters}, MaxPerPartition: 200}
}

// retry requests a retry of a letter that is drawn from the present ones, any number of
// times: the request is refused if the letter was decided meanwhile.
func (s *sim) retry(p *proc) bool {
	var id, tenant uuid.UUID
	err := p.do(&operation{what: "choose a dead letter", effect: func(opOutcome) error {
		var all []*simRow
		for _, partition := range s.plan.partitions {
			for i := range s.db.rows[partition] {
				if r := &s.db.rows[partition][i]; r.fails() && r.letter() == uuid.UUID(r.values[colEventID]) {
					all = append(all, r)
				}
			}
		}
		if len(all) > 0 {
			r := all[s.rng.IntN(len(all))]
			id, tenant = r.letter(), r.key.tenant
		}
		return nil
	}})
	if err != nil || id == uuid.Nil {
		return err == nil
	}
	d := &repair.DeadLetters{Store: s.storeOf(p), Now: s.now, NewID: p.newID}
	_, err = d.RequestRetry(p.ctx, commands.Request{By: commands.Caller{TenantID: tenant}}, id, tenant, "simulated")
	return s.decided("retry", err)
}

// decided reports whether a change was made or refused, for good.
func (s *sim) decided(what string, err error) bool {
	if refusal, ok := err.(*domain.Error); ok {
		s.count(what + " refused: " + refusal.Code)
		return refusal.Code != "unavailable"
	}
	if err == nil {
		s.count(what)
	}
	return err == nil
}

// fails reports whether the row is a failure that makes a letter.
func (r *simRow) fails() bool {
	return r.subject == events.UsageRejected || r.subject == events.PublishFailed || r.subject == events.AggregationFailed
}

// letterFields are the members of payloads about dead letters.
type letterFields struct {
	DeadLetterID   uuid.UUID
	SourcePosition int64
	RawPosition    int64
	Stage, Status  string
	Attempt        int
	Rejected       bool
	Usage          json.RawMessage
	Validated      events.Validated
}

func (r *simRow) fields() (f letterFields) {
	if err := json.Unmarshal(r.payload(), &f); err != nil {
		panic(err)
	}
	return f
}

func (r *simRow) letter() uuid.UUID {
	if id := r.fields().DeadLetterID; id != uuid.Nil {
		return id
	}
	return uuid.UUID(r.values[colEventID])
}

// letterQuery executes the queries about letters.
func (tx *simTx) letterQuery(text string, args []any) *simRows {
	db := tx.p.s.db
	switch {
	case strings.Contains(text, "SELECT d.id, d.tenant_id, d.stage"):
		var out *simRows
		err := tx.do("look up dead letters", kindStep, nil, func() error {
			out = db.letters(args[0].([]uuid.UUID), args[1].(int16))
			return nil
		})
		return orFailed(out, err)
	case strings.HasPrefix(text, "SELECT min(position) FROM consumer_checkpoints"):
		return simAnswer([]any{db.ckpt[ckptKey{args[0].(string), args[1].(int16)}]})
	case strings.HasPrefix(text, "SELECT a.id, f.dedupe_key"):
		return tx.outcomesOf(text, args[0].([]uuid.UUID), args[1].([]uuid.UUID), args[2].([]int64), args[3].(int16))
	case strings.HasSuffix(text, "l.position = ANY ($2::bigint[])"):
		out := &simRows{}
		for _, n := range args[2].([]int64) {
			out.raw = append(out.raw, db.stretch(args[1].(int16), n-1, n, 1, func(*simRow) bool { return true })...)
		}
		return out
	}
	return nil
}

// letters returns the table of letters: each by its last failure, or by the first, if
// the table lags behind.
func (db *simDB) letters(ids []uuid.UUID, partition int16) *simRows {
	out := simAnswer().named("id", "tenant_id", "stage", "source", "source_subject", "raw_position", "payload", "corrected", "archived")
	behind := db.s.chance(500)
	for _, id := range ids {
		for i := range db.rows[partition] {
			r := &db.rows[partition][i]
			if !r.fails() || r.letter() != id {
				continue
			}
			f := r.fields()
			if r.subject == events.UsageRejected {
				f.Stage, f.SourcePosition = events.StageValidation, f.RawPosition
			}
			source := &db.rows[partition][f.SourcePosition-1]
			raw := source.at.Number
			if n := source.fields(); n.RawPosition != 0 || n.Validated.RawPosition != 0 {
				raw = max(n.RawPosition, n.Validated.RawPosition)
			}
			var counted []byte
			if source.topic == events.TopicUsageValidated {
				counted = source.payload()
			}
			// no usage is corrected, and no tenant archived
			row := []any{id, r.key.tenant, f.Stage, f.SourcePosition, source.subject, raw, counted, false, false}
			if at := slices.IndexFunc(out.list, func(o []any) bool { return o[0] == id }); at < 0 {
				out.list = append(out.list, row)
			} else if !behind {
				out.list[at] = row
			}
		}
	}
	return out
}

// outcomesOf makes the comparisons that the statement's text has.
func (tx *simTx) outcomesOf(text string, ids, tenants []uuid.UUID, raws []int64, partition int16) *simRows {
	out := simAnswer()
	for i, id := range ids {
		for _, rows := range [][]simRow{tx.p.s.db.rows[partition], tx.root.w.rows} {
			for j := range rows {
				r := &rows[j]
				key := r.key.key
				known := strings.Contains(text, "'r/' || a.id") && strings.HasPrefix(key, fmt.Sprint("r/", id, "/")) ||
					strings.Contains(text, "'v/' || a.raw") && key == events.KeyValidated(raws[i]) ||
					strings.Contains(text, "'x/' || a.raw") && strings.HasPrefix(key, fmt.Sprint("x/", raws[i], "/"))
				if r.at.Partition != partition || r.key.tenant != tenants[i] || !known {
					continue
				}
				status, cause := "", uuid.Nil
				if r.subject == events.DeadLetterClosed {
					status = r.fields().Status
				}
				if r.values[colCausation] != nil {
					cause = uuid.UUID(r.values[colCausation])
				}
				out.list = append(out.list, []any{id, key, r.at.Number, cause, status})
			}
		}
	}
	return out
}

// retried applies the changes of a retry: a rejection is accepted and rejected once more,
// an event that the fixed fold accepts counts once, and all others stay parked.
func (m *model) retried(fixed *correctionFold, row *simRow, terms map[string]int64, want map[aggKey]simAgg) {
	f := row.fields()
	if row.subject == events.UsageRetried {
		u, err := codec.UsageOf(f.Usage)
		switch {
		case isCorrection(f.Usage) || u.Feature == featureFixed:
			terms["accepted"]++
			if amount, count, ok := fixed.retried(row); ok {
				m.adds(want, row, featureFixed, amount, count)
				terms["validated"]++
			} else {
				terms["rejected"]++
			}
		case err != nil:
			m.s.fail("%s retries what is no usage: %v", row.at, err)
		case u.Feature == featureLate:
			terms["accepted"]++
			terms["rejected"]++
		case m.s.db.withheld[row.at]:
			terms["parked"]--
			terms["validated"]++
			m.adds(want, row, u.Feature, u.Amount, 1)
		}
		return
	}
	if f.Validated.Feature != featurePoison {
		return
	}
	terms["parked"]--
	m.adds(want, row, featurePoison, f.Validated.Amount, 1)
	key := fmt.Sprint(row.key.tenant, f.Validated.RawPosition)
	if terms[key]++; terms[key] > 1 {
		m.s.fail("%s was retried again after it was resolved", row.at)
	}
}
