package verify

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// letterStates derives the state of each dead letter from the log and recounts the head's counters.
type letterStates struct {
	upTo    int64 // the checkpoint of the dead letter handler
	counts  counts
	letters map[uuid.UUID]*letter
	failed  bool // the handler could not fold an event
}

type letter struct {
	tenant        uuid.UUID
	stage, status string // the state that the handler must have stored
	known         bool   // the handler's checkpoint includes it
	parked        bool   // counted as parked now
	seen          int
}

func newLetterStates(upTo int64) letterStates {
	return letterStates{upTo: upTo, letters: map[uuid.UUID]*letter{}}
}

func (f *letterStates) of(id, tenant uuid.UUID) *letter {
	l := f.letters[id]
	if l == nil {
		l = &letter{tenant: tenant}
		f.letters[id] = l
	}
	return l
}

func (f *letterStates) add(x *pass, r *row, s *content, err error) {
	id := s.DeadLetterID
	if id == uuid.Nil || r.subject == conflicted || r.subject == refused {
		id = r.id
	}
	switch r.subject {
	case recorded, admitted, corrected, retracted:
		f.counts.accepted++
		return
	case validated:
		f.counts.validated++
		return
	case retried, reaggregated: // a retry ends the parking; a refused event is accepted again
		if l := f.of(id, r.tenant); l.parked {
			l.parked = false
			f.counts.parked--
		} else {
			f.counts.accepted++
		}
		return
	}
	if r.topic != topicLetters {
		return
	}
	l := f.of(id, r.tenant)
	f.tally(x, l, r, s)
	if r.position > f.upTo || x.withheld[r.position] {
		return
	}
	if err != nil {
		f.failed = true // the handler could not read it either
		return
	}
	l.fold(r.subject, s)
}

// tally applies an event to the recounted counters.
func (f *letterStates) tally(x *pass, l *letter, r *row, s *content) {
	parks := false
	switch r.subject {
	case rejected:
		f.counts.rejected++
	case publishFailed:
		parks = s.Topic == topicNames[1] || s.Topic == topicNames[2]
	case aggregationFailed:
		by := x.services[r.origin]
		parks = by == validator || by == aggregator
		f.failed = f.failed || by == letterReader
	case letterClosed:
		if l.parked && s.Status == stateDiscarded {
			f.counts.parked--
			f.counts.rejected++
			l.parked = false
		}
	}
	if parks {
		f.counts.parked++
		l.parked = true
	}
}

func (l *letter) fold(subject int16, s *content) {
	switch subject {
	case rejected:
		l.stage = stageValidation
	case conflicted, refused:
		l.stage = stageIngestion
	case publishFailed, aggregationFailed:
		l.stage = s.Stage
	case letterRetried:
		l.status = stateRetrying
		return
	case letterClosed:
		l.status = s.Status
		return
	default:
		return
	}
	l.known, l.status = true, stateFailed
}

const lettersSQL = `SELECT id, tenant_id, stage, status FROM dead_letter_events WHERE generation = $1 AND partition = $2`

func (x *pass) compareLetters(ctx context.Context, tx pgx.Tx) error {
	if x.letterStates.failed {
		x.deadLetters.incomplete(fmt.Errorf("partition %d is not compared: the dead letter handler could not apply an event of it", x.p))
		return nil
	}
	all, err := x.candidates(ctx, tx, x.deadLetters, "dead_letter_events", letterReader)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		if err := x.compareCounts(ctx, tx, g.number); err != nil {
			return err
		}
		if g.tenant != uuid.Nil {
			x.deadLetters.note("generation %d, of one tenant, is not checked", g.number)
			continue
		}
		var id, tenant uuid.UUID
		var stage, status string
		err := each(ctx, tx, lettersSQL, []any{g.number, x.p}, []any{&id, &tenant, &stage, &status}, func() error {
			x.deadLetters.n++
			l := x.letterStates.letters[id]
			switch {
			case g.replacedBy(figure{tenant: tenant}) != 0:
			case l == nil || !l.known:
				x.deadLetters.fault("generation %d has the dead letter %s, which the log does not have", g.number, id)
			case l.stage != stage || l.status != status:
				x.deadLetters.fault("generation %d has the dead letter %s as %s %s, the log has it as %s %s", g.number, id, stage, status,
					l.stage, l.status)
			}
			if l != nil {
				l.seen = g.number
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read dead_letter_events: %w", err)
		}
		for id, l := range x.letterStates.letters {
			x.deadLetters.expect(l.seen == g.number || !l.known || g.replacedBy(figure{tenant: l.tenant}) != 0,
				"generation %d has no dead letter %s (%s %s)", g.number, id, l.stage, l.status)
		}
	}
	return nil
}

func (x *pass) addLetter(r *row, s *content, err error) { x.letterStates.add(x, r, s, err) }
