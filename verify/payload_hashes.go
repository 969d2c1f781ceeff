package verify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/gowebpki/jcs"
)

func (x *pass) addHash(r *row, s *content, err error) {
	if x.erased.of(r.tenant) && (r.subject == conflicted && s.FirstHash == erasedHash && s.ConflictHash == erasedHash ||
		len(r.hash) == 0 && slices.Contains([]int16{recorded, corrected, retracted, admitted}, r.subject)) {
		x.payloadHashes.n++
		return
	}
	switch r.subject {
	case recorded:
		x.hash(r, err)
	case corrected, retracted:
		x.hashWhole(r, err)
	case admitted:
		x.hashSent(r, s, err)
	case reservationHeld:
		x.hashHold(r)
	case conflicted:
		x.addConflict(r, s)
	}
}

// hash recomputes the stored hash of recorded usage. Most rows store no hash: it follows
// from the payload, which must then be readable.
func (x *pass) hash(r *row, unread error) {
	x.payloadHashes.n++
	if unread == nil && len(r.hash) == 0 { // the hash follows from the payload
		return
	}
	payload, err := r.payload()
	if err = cmp.Or(unread, err); err != nil {
		x.payloadHashes.fault("%s has no readable payload: %v", x.at(r.position), err)
		return
	}
	sum := sha256.Sum256(payload)
	if r.hash[0] != 1 {
		x.payloadHashes.add(1, "with an unknown canonical form")
		return
	}
	x.payloadHashes.expect(bytes.Equal(r.hash[1:], sum[:]), "%s stores the hash %x, its payload has %x", x.at(r.position),
		r.hash[1:min(9, len(r.hash))], sum[:8])
}

// hashWhole recomputes the stored hash of a correction or a retraction: of its payload, which the row has whole.
func (x *pass) hashWhole(r *row, unread error) {
	x.payloadHashes.n++
	if unread != nil {
		x.payloadHashes.fault("%s has no readable payload: %v", x.at(r.position), unread)
		return
	}
	sum := sha256.Sum256(r.body)
	x.payloadHashes.expect(len(r.hash) == 33 && r.hash[0] == 1 && bytes.Equal(r.hash[1:], sum[:]),
		"%s stores the hash %x, its payload has %x", x.at(r.position), r.hash[:min(9, len(r.hash))], sum[:8])
}

// hashSent recomputes the stored hash of admitted usage: of the members that the client sent, for a
// consumption and a commit with the route.
func (x *pass) hashSent(r *row, s *content, unread error) {
	x.payloadHashes.n++
	var sent struct {
		Amount   json.Number     `json:"amount"`
		By       string          `json:"by"`
		EventID  string          `json:"eventId"`
		Feature  string          `json:"feature"`
		Metadata json.RawMessage `json:"metadata,omitempty"`
		// The members below are of commits.
		Overage       string `json:"overage,omitempty"`
		ReservationID string `json:"reservationId,omitempty"`
	}
	var ingested struct {
		Amount    json.Number     `json:"amount"`
		EventID   string          `json:"eventId"`
		Feature   string          `json:"feature"`
		Metadata  json.RawMessage `json:"metadata,omitempty"`
		Source    string          `json:"source,omitempty"`
		Timestamp string          `json:"timestamp"`
		Type      string          `json:"type"`
	}
	if err := errors.Join(unread, json.Unmarshal(r.body, &sent), json.Unmarshal(s.Admitted, &sent),
		json.Unmarshal(r.body, &ingested)); err != nil {
		x.payloadHashes.fault("%s has no readable payload: %v", x.at(r.position), err)
		return
	}
	version := byte(2)
	var given any = &sent
	if sent.By == "enforce" {
		version, given = 1, &ingested // as recorded usage
	}
	x.compareHash(r, version, given)
}

// hashHold recomputes the stored hash of a hold: of the members that the client sent, without the time.
func (x *pass) hashHold(r *row) {
	x.payloadHashes.n++
	var sent struct {
		Amount        json.Number `json:"amount"`
		Feature       string      `json:"feature"`
		ReservationID string      `json:"reservationId"`
	}
	if err := json.Unmarshal(r.body, &sent); err != nil {
		x.payloadHashes.fault("%s has no readable payload: %v", x.at(r.position), err)
		return
	}
	x.compareHash(r, 2, &sent)
}

// compareHash compares the stored hash with that of the canonical form of a document.
func (x *pass) compareHash(r *row, version byte, given any) {
	document, err := json.Marshal(given)
	if err == nil {
		var fault error
		if document, fault = jcs.Transform(document); fault != nil {
			err = fault
		}
	}
	sum := sha256.Sum256(document)
	x.payloadHashes.expect(err == nil && len(r.hash) == 33 && r.hash[0] == version && bytes.Equal(r.hash[1:], sum[:]),
		"%s stores the hash %x, what was sent has %x", x.at(r.position), r.hash[:min(9, len(r.hash))], sum[:8])
}

// erasedHash stands for the hashes of a conflict whose personal data is erased.
var erasedHash = strings.Repeat("0", 64)

// conflict is a conflict with the first payload's hash that it stores.
type conflict struct {
	position, first int64
	hash            string
}

// maxConflicts bounds the memory for the conflicts of a partition.
const maxConflicts = 500_000

func (x *pass) addConflict(r *row, s *content) {
	x.payloadHashes.n++
	canonical, fault := jcs.Transform(s.Payload)
	if fault != nil {
		x.payloadHashes.fault("the conflict at %s has an invalid payload", x.at(r.position))
		return
	}
	sum := sha256.Sum256(canonical)
	x.payloadHashes.expect(hex.EncodeToString(sum[:]) == s.ConflictHash, "the conflict at %s stores the hash %.16s, its payload has %x",
		x.at(r.position), s.ConflictHash, sum[:8])
	x.payloadHashes.expect(s.FirstHash != s.ConflictHash, "the conflict at %s has the hash of the first payload", x.at(r.position))
	switch {
	case x.erased.runs(r.tenant): // its first event may be erased
	case len(x.conflicts) < maxConflicts:
		x.conflicts = append(x.conflicts, conflict{r.position, s.RawPosition, s.FirstHash})
	default:
		x.payloadHashes.add(1, "conflicts not compared with their first event: too many")
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
			if payload, err := r.payload(); err == nil && (r.subject == recorded || r.subject == corrected || r.subject == retracted) {
				sum := sha256.Sum256(payload)
				first[r.position] = hex.EncodeToString(sum[:])
			} else if r.subject == admitted && len(r.hash) > 1 { // hashSent has compared it
				first[r.position] = hex.EncodeToString(r.hash[1:])
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("read the first events of conflicts: %w", err)
		}
		for _, c := range some {
			x.payloadHashes.expect(first[c.first] == c.hash, "the conflict at %s stores the first payload's hash %.16s, %s has %.16s",
				x.at(c.position), c.hash, x.at(c.first), first[c.first])
		}
	}
	return nil
}
