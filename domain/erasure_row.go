package domain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// LoggedRow is a row of the log: the parts that an erasure reads and writes.
type LoggedRow struct {
	Position   int64
	Subject    events.Subject
	Key        string // of dedupe
	OccurredAt time.Time
	Hash       []byte // nil: none, or that of the payload
	Body       []byte
}

// FirstNumber returns the number of the first event of a conflict.
func (r *LoggedRow) FirstNumber() (int64, error) {
	var of events.Conflicted
	err := json.Unmarshal(r.Body, &of)
	return of.RawPosition, err
}

// Row returns a row without personal data, and whether it differs. first is the row of the first event of a conflict.
func (e *Eraser) Row(r LoggedRow, first *LoggedRow) (erased LoggedRow, changed bool, err error) {
	erased = r
	if r.Subject == events.UsageRecorded && len(r.Body) > 0 && r.Body[0] == '[' {
		erased.Body, err = e.short(&r)
	} else {
		of := ""
		if first != nil {
			of = first.payloadHash()
		}
		erased.Body, err = e.Payload(r.Subject, r.Body, of)
	}
	if err != nil || bytes.Equal(erased.Body, r.Body) {
		return r, false, err
	}
	switch r.Subject {
	case events.UsageRecorded:
		erased.Hash = nil // it follows from the payload
	case events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted:
		if erased.Hash, err = erased.sentHash(); err != nil {
			return r, false, err
		}
	}
	erased.Key = e.dedupeKey(&erased)
	return erased, true, nil
}

// short erases the short body of recorded usage: amount, feature, metadata and source.
func (e *Eraser) short(r *LoggedRow) ([]byte, error) {
	var members []json.RawMessage
	var feature string
	if err := json.Unmarshal(r.Body, &members); err != nil || len(members) < 3 {
		return r.Body, err
	}
	if err := json.Unmarshal(members[1], &feature); err != nil {
		return nil, err
	}
	switch members[2] = e.metadata(feature, members[2]); {
	case members[2] == nil && len(members) == 3:
		members = members[:2]
	case members[2] == nil:
		members[2] = json.RawMessage("null")
	}
	return append(append([]byte{'['}, bytes.Join(rawTexts(members), []byte{','})...), ']'), nil
}

func rawTexts(members []json.RawMessage) (texts [][]byte) {
	for _, m := range members {
		texts = append(texts, m)
	}
	return texts
}

// keyHash finds the hash of a content in the key of a conflict, a refusal or a parked record.
var keyHash = regexp.MustCompile(`/([0-9a-f]{16}|[0-9a-f]{66})((?:/-?[0-9]+)?)$`)

// dedupeKey returns the key of an erased row. The hash of a content in it becomes that of the erased content, or a pseudonym.
func (e *Eraser) dedupeKey(erased *LoggedRow) string {
	switch erased.Subject {
	case events.UsageConflicted, events.UsageRefused, events.RecordParked:
	default:
		return erased.Key
	}
	return keyHash.ReplaceAllStringFunc(erased.Key, func(part string) string {
		m := keyHash.FindStringSubmatch(part)
		hash := e.sum("", m[1])
		if erased.Subject == events.UsageConflicted {
			var of events.Conflicted
			_ = json.Unmarshal(erased.Body, &of) // Payload has read it
			hash = m[1][:2] + of.ConflictHash
		}
		return "/" + hash + m[2]
	})
}

// payloadHash returns the hash by which the payload of a row is compared, in hex.
func (r *LoggedRow) payloadHash() string {
	if len(r.Hash) > 1 {
		return hex.EncodeToString(r.Hash[1:])
	}
	sum := sha256.Sum256(codec.WholePayload(r.Subject, r.Key, r.OccurredAt, r.Body))
	return hex.EncodeToString(sum[:])
}

// sentHash computes the stored hash of a correction, a retraction, or admitted usage: of the members that the client sent.
func (r *LoggedRow) sentHash() ([]byte, error) {
	if len(r.Hash) == 0 {
		return nil, nil
	}
	sent := json.RawMessage(r.Body)
	if r.Subject == events.UsageAdmitted {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(r.Body, &members); err != nil {
			return nil, err
		}
		var by map[string]json.RawMessage
		if err := json.Unmarshal(members["admitted"], &by); err != nil {
			return nil, err
		}
		delete(members, "admitted")
		if string(by["by"]) != strconv.Quote(events.ByEnforce) { // the route is sent, the time is the server's
			delete(members, "timestamp")
			delete(members, "type")
			for _, name := range []string{"by", "overage", "reservationId"} {
				if by[name] != nil {
					members[name] = by[name]
				}
			}
		}
		sent = canonicalOf(members)
	}
	sum := sha256.Sum256(sent)
	return append(slices.Clone(r.Hash[:1]), sum[:]...), nil
}
