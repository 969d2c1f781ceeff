package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// eventOf returns the JSON of the event for one amount of a row.
func eventOf(id string, a amount, r *usageRow, shift time.Duration) ([]byte, error) {
	sent := &a.n
	if a.kind == typeRetraction {
		sent = nil
	}
	b, err := json.Marshal(struct {
		Type      string            `json:"type,omitempty"`
		EventID   string            `json:"eventId"`
		Ref       string            `json:"correctionRef,omitempty"`
		Feature   string            `json:"feature"`
		Amount    *int64            `json:"amount,omitempty"`
		Timestamp string            `json:"timestamp"`
		Metadata  map[string]string `json:"metadata,omitempty"`
	}{a.kind, id, a.ref, a.feature, sent, r.at.Add(shift).UTC().Format(time.RFC3339Nano), r.metadata})
	if err != nil {
		return nil, fmt.Errorf("write the event of line %d: %w", r.line, err)
	}
	return b, nil
}

// eventIDs makes the ids of a file's events, in the order of the file. They depend on no name, file or machine: the same row has the same
// id in every file that holds it.
type eventIDs struct {
	// again is the name of an import whose rows count again, "" for none.
	again string
	// seen has how often an event was in the file so far, by its hash.
	seen map[[16]byte]uint32
}

// of returns the id of an event: that of the row and the feature, or else the hash of its values and of its occurrence among equal events
// of its tenant.
func (ids *eventIDs) of(r *usageRow, a amount, tenant string) (string, error) {
	switch {
	case r.id != "" && ids.again != "":
		return r.id + "/" + a.feature + "/" + hash(ids.again)[:8], nil
	case r.id != "":
		return r.id + "/" + a.feature, nil
	}
	values, err := eventOf("", a, r, 0)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(tenant + "|" + string(values)))
	occurrence := [16]byte(sum[:16])
	ids.seen[occurrence]++
	return hash(string(values), strconv.FormatUint(uint64(ids.seen[occurrence]), 10), ids.again), nil
}

// first returns the id of an event that is the first of its values in the file.
func (ids *eventIDs) first(r *usageRow) (string, error) {
	alone := eventIDs{again: ids.again, seen: map[[16]byte]uint32{}}
	return alone.of(r, r.amounts[0], "")
}

// hash returns the first 32 hex digits of SHA-256 over the parts, joined by "|".
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "|")))
	return hex.EncodeToString(sum[:16])
}

// maxID leaves room for the feature, and for the hash of a name, in an eventId of 255 characters.
const maxID = 180

// readID returns an id as a part of an eventId, in which characters that it cannot have are written %XX.
func readID(s string) (string, error) {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	switch {
	case s == "":
		return "", errors.New("the field is empty: it has the id of the row")
	case b.Len() > maxID:
		return "", fmt.Errorf("%s is longer than the %d characters of an id", clipped(s), maxID)
	}
	return b.String(), nil
}
