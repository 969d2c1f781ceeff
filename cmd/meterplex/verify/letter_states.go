package verify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// letterStates derives the state of each dead letter from the log and recounts the head's counters.
type letterStates struct {
	upTo    int64 // the checkpoint of the dead letter handler
	counts  counts
	letters map[uuid.UUID]*letter
	failed  bool // the handler could not fold an event
}

type letter struct {
	stage, status string // the state that the handler must have stored
	known         bool   // the handler's checkpoint includes it
	parked        bool   // counted as parked now
	seen          int
}

func newLetterStates(upTo int64) letterStates {
	return letterStates{upTo: upTo, letters: map[uuid.UUID]*letter{}}
}

func (f *letterStates) of(id uuid.UUID) *letter {
	l := f.letters[id]
	if l == nil {
		l = new(letter)
		f.letters[id] = l
	}
	return l
}

func (f *letterStates) add(x *pass, r *row, s *content, err error) {
	id := s.DeadLetterID
	if id == uuid.Nil || r.subject == conflicted || r.subject == refused || r.subject == parkedRecord {
		id = r.id
	}
	switch r.subject {
	case recorded:
		f.counts.accepted++
		return
	case validated:
		f.counts.validated++
		return
	case retried, reaggregated: // a retry ends the parking; a refused event is accepted again
		if l := f.of(id); l.parked {
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
	l := f.of(id)
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
		parks = s.Topic == events.TopicUsageRaw.Name() || s.Topic == events.TopicUsageValidated.Name()
	case aggregationFailed:
		by := x.services[r.origin]
		parks = by == events.GroupValidator || by == events.GroupAggregator
		f.failed = f.failed || by == events.GroupDeadLetter
	case letterClosed:
		if l.parked && s.Status == events.StatusDiscarded {
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
		l.stage = events.StageValidation
	case conflicted, refused:
		l.stage = events.StageIngestion
	case parkedRecord:
		l.stage = events.StagePublishing
	case publishFailed, aggregationFailed:
		l.stage = s.Stage
	case letterRetried:
		l.status = events.StatusRetrying
		return
	case letterClosed:
		l.status = s.Status
		return
	default:
		return
	}
	l.known, l.status = true, events.StatusFailed
}

const lettersSQL = `SELECT id, stage, status FROM dead_letter_events WHERE generation = $1 AND partition = $2`

func (x *pass) compareLetters(ctx context.Context, tx pgx.Tx) error {
	if x.letterStates.failed {
		x.letters.incomplete(fmt.Errorf("partition %d is not compared: the dead letter handler could not fold an event of it", x.p))
		return nil
	}
	all, err := x.candidates(ctx, tx, x.letters, "dead_letter_events", events.GroupDeadLetter)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		if g.tenant != uuid.Nil {
			x.letters.note("generation %d, of one tenant, is not checked", g.number)
			continue
		}
		var id uuid.UUID
		var stage, status string
		err := each(ctx, tx, lettersSQL, []any{g.number, x.p}, []any{&id, &stage, &status}, func() error {
			x.letters.n++
			l := x.letterStates.letters[id]
			switch {
			case l == nil || !l.known:
				x.letters.fault("generation %d has the dead letter %s, which the log does not have", g.number, id)
			case l.stage != stage || l.status != status:
				x.letters.fault("generation %d has the dead letter %s as %s %s, the log has it as %s %s", g.number, id, stage, status, l.stage, l.status)
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
			x.letters.expect(l.seen == g.number || !l.known, "generation %d has no dead letter %s (%s %s)", g.number, id, l.stage, l.status)
		}
	}
	return nil
}

// hash recomputes the stored hash of recorded usage. Most rows store no hash: it follows
// from the payload, which must then be readable.
func (x *pass) hash(r *row, unread error) {
	x.hashes.n++
	if unread == nil && len(r.hash) == 0 { // the hash follows from the payload
		return
	}
	payload, err := r.payload()
	if err = cmp.Or(unread, err); err != nil {
		x.hashes.fault("%s has no readable payload: %v", x.at(r.position), err)
		return
	}
	sum := sha256.Sum256(payload)
	if r.hash[0] != 1 {
		x.hashes.add(1, "with an unknown canonical form")
		return
	}
	x.hashes.expect(bytes.Equal(r.hash[1:], sum[:]), "%s stores the hash %x, its payload has %x", x.at(r.position), r.hash[1:min(9, len(r.hash))], sum[:8])
}

// conflict is a conflict with the first payload's hash that it stores.
type conflict struct {
	position, first int64
	hash            string
}

// maxConflicts bounds the memory for the conflicts of a partition.
const maxConflicts = 500_000

func (x *pass) addConflict(r *row, s *content) {
	x.hashes.n++
	canonical, fault := strictjson.Canonical(s.Payload)
	if fault != nil {
		x.hashes.fault("the conflict at %s has an invalid payload", x.at(r.position))
		return
	}
	sum := sha256.Sum256(canonical)
	x.hashes.expect(hex.EncodeToString(sum[:]) == s.ConflictHash, "the conflict at %s stores the hash %.16s, its payload has %x", x.at(r.position), s.ConflictHash, sum[:8])
	x.hashes.expect(s.FirstHash != s.ConflictHash, "the conflict at %s has the hash of the first payload", x.at(r.position))
	if len(x.conflicts) < maxConflicts {
		x.conflicts = append(x.conflicts, conflict{r.position, s.RawPosition, s.FirstHash})
	} else {
		x.hashes.add(1, "conflicts not compared with their first event: too many")
	}
}

// compareConflicts compares conflicts with their first events, 1,000 at a time.
func (x *pass) compareConflicts(ctx context.Context, tx pgx.Tx) error {
	for len(x.conflicts) > 0 {
		some := x.conflicts[:min(len(x.conflicts), 1000)]
		x.conflicts = x.conflicts[len(some):]
		var which []int64
		for _, c := range some {
			which = append(which, c.first)
		}
		first := map[int64]string{}
		rows, err := tx.Query(ctx, rowsSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, x.p, which)
		if err != nil {
			return fmt.Errorf("read the first events of conflicts: %w", err)
		}
		for rows.Next() {
			var r row
			if err := r.read(rows.RawValues()); err != nil {
				rows.Close()
				return err
			}
			if payload, err := r.payload(); err == nil && r.subject == recorded {
				sum := sha256.Sum256(payload)
				first[r.position] = hex.EncodeToString(sum[:])
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read the first events of conflicts: %w", err)
		}
		for _, c := range some {
			x.hashes.expect(first[c.first] == c.hash, "the conflict at %s stores the first payload's hash %.16s, %s has %.16s", x.at(c.position), c.hash, x.at(c.first), first[c.first])
		}
	}
	return nil
}
