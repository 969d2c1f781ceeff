package domain

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// States of an erasure.
const (
	ErasureRunning = "RUNNING"
	ErasureErased  = "ERASED" // ended
)

// ErasureDeadline is the time after which an erasure that still runs is partial.
const ErasureDeadline = 24 * time.Hour

// Erasure is the erasure of the personal data of an archived tenant. Its times are of the database's clock.
type Erasure struct {
	ID          uuid.UUID
	TenantID    uuid.UUID
	SagaID      uuid.UUID
	State       string
	Reason      string
	Actor       string
	RequestedAt time.Time
	// Key makes the pseudonyms. It is random, and nil once the erasure has ended: no later guess of a value can be compared.
	Key       []byte
	Cursor    int64  // the log is rewritten up to this number
	Place     string // in the read models: the place after which their erasure continues
	Rewritten int64  // events of the log that were changed
	EndedAt   *time.Time
}

// Eraser takes personal data out of events and read models. Of the metadata of usage it keeps the members that the usage of the feature was ever
// grouped by, with pseudonyms as their values, so that each figure by group stays. It changes nothing that it has erased before.
type Eraser struct {
	key  []byte
	keys map[string][]string
}

// NewEraser returns an eraser. The keys are those of all groupings of a feature.
func NewEraser(key []byte, groupings []Grouping) *Eraser {
	e := &Eraser{key, map[string][]string{}}
	for _, g := range groupings {
		e.keys[g.Feature] = append(e.keys[g.Feature], g.Keys...)
	}
	return e
}

// pseudonym is the form of the pseudonyms.
var pseudonym = regexp.MustCompile(`^erased-[0-9a-f]{16}$`)

// Pseudonym returns the pseudonym of a value of a metadata member: the same for the same value, and of no use without the key. GroupOther keeps its meaning.
func (e *Eraser) Pseudonym(name, value string) string {
	if value == GroupOther || pseudonym.MatchString(value) {
		return value
	}
	return "erased-" + e.sum(name, value)
}

func (e *Eraser) sum(name, value string) string {
	mac := hmac.New(sha256.New, e.key)
	_, _ = mac.Write([]byte(name + "\x00" + value)) // never fails
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// metadata returns the metadata of usage of a feature without personal data, in canonical form; nil if nothing is left.
func (e *Eraser) metadata(feature string, metadata json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(metadata, &members) // null: there is none
	kept := map[string]string{}
	for _, name := range e.keys[feature] {
		if value, ok := GroupValue(members[name]); ok {
			kept[name] = e.Pseudonym(name, value)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return canonicalOf(kept)
}

// canonicalOf returns the canonical JSON of a value that was decoded from JSON.
func canonicalOf(value any) json.RawMessage {
	text, err := json.Marshal(value)
	if err != nil {
		panic("domain: JSON that was decoded cannot be encoded: " + err.Error())
	}
	canonical, fault := strictjson.Canonical(text)
	if fault != nil {
		return text // of an earlier release: figures do not depend on its form
	}
	return canonical
}

// Payload returns the payload of an event without personal data. first is, of a conflict, the hash of the payload that stays, in hex.
func (e *Eraser) Payload(subject events.Subject, payload []byte, first string) ([]byte, error) {
	switch subject {
	case events.UsageRecorded, events.UsageAdmitted, events.UsageCorrected, events.UsageRetracted:
		return e.usage(payload)
	case events.UsageRetried:
		return edited(payload, func(name string, value json.RawMessage) (json.RawMessage, error) {
			if name == "usage" {
				return e.usage(value)
			}
			return value, nil
		})
	case events.UsageConflicted:
		return e.conflict(payload, first)
	case events.UsageRefused: // its payload is of any form, and its reason may quote it
		return edited(payload, replaced(map[string]string{"payload": "", "reason": `"erased"`}))
	case events.RefusalsSeen:
		return edited(payload, func(name string, value json.RawMessage) (json.RawMessage, error) {
			if name == "samples" {
				return withoutPayloads(value)
			}
			return value, nil
		})
	case events.RecordParked:
		return edited(payload, replaced(map[string]string{"key": "", "value": ""}))
	case events.PublishFailed, events.AggregationFailed:
		return e.failed(payload)
	case events.TenantCreated, events.TenantChanged:
		return edited(payload, replaced(map[string]string{"name": strconv.Quote(events.ErasedName), "externalIds": "", "metadata": ""}))
	}
	return payload, nil
}

// ErasableSubjects lists the subjects whose events may have personal data.
func ErasableSubjects() []events.Subject {
	return []events.Subject{events.UsageRecorded, events.UsageConflicted, events.UsageRetried, events.UsageRefused, events.UsageAdmitted, events.UsageCorrected,
		events.PublishFailed, events.AggregationFailed, events.RecordParked, events.UsageRetracted, events.RefusalsSeen, events.TenantCreated, events.TenantChanged}
}

func (e *Eraser) usage(payload []byte) ([]byte, error) {
	var of struct {
		Feature string `json:"feature"`
	}
	if err := json.Unmarshal(payload, &of); err != nil {
		return nil, err
	}
	return edited(payload, func(name string, value json.RawMessage) (json.RawMessage, error) {
		if name == "metadata" {
			return e.metadata(of.Feature, value), nil
		}
		return value, nil
	})
}

// failed erases the payload of the event that failed, which names its subject.
func (e *Eraser) failed(payload []byte) ([]byte, error) {
	var of struct {
		SourceSubject string `json:"sourceSubject"`
	}
	if err := json.Unmarshal(payload, &of); err != nil {
		return nil, err
	}
	subject := SubjectNamed(of.SourceSubject)
	return edited(payload, func(name string, value json.RawMessage) (json.RawMessage, error) {
		if name == "payload" && len(value) > 0 && value[0] == '{' {
			return e.Payload(subject, value, "")
		}
		return value, nil
	})
}

// SubjectNamed returns the subject of a type with its version, such as meterplex.usage.event.recorded.v1; 0 for an unknown one.
func SubjectNamed(name string) events.Subject {
	at := max(strings.LastIndex(name, ".v"), 0)
	version, _ := strconv.Atoi(strings.TrimPrefix(name[at:], ".v"))
	subject, _ := events.SubjectOf(name[:at], version)
	return subject
}

// Conflicting returns the refused payload of a conflict without personal data, with its SHA-256 in hex. A pseudonym of the whole payload stays in its
// metadata: two conflicts that differ in personal data only remain two, and differ from the first event.
func (e *Eraser) Conflicting(payload json.RawMessage) (erased json.RawMessage, hash string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(payload, &members) != nil {
		members = map[string]json.RawMessage{} // it does not occur: the payload was canonical
	}
	var metadata struct {
		Erased string `json:"erased"`
	}
	_ = json.Unmarshal(members["metadata"], &metadata)
	erased = payload
	if !pseudonym.MatchString(metadata.Erased) {
		members["metadata"] = canonicalOf(map[string]string{"erased": e.Pseudonym("", string(payload))})
		erased = canonicalOf(members)
	}
	sum := sha256.Sum256(erased)
	return erased, hex.EncodeToString(sum[:])
}

func (e *Eraser) conflict(payload []byte, first string) ([]byte, error) {
	var of events.Conflicted
	if err := json.Unmarshal(payload, &of); err != nil {
		return nil, err
	}
	erased, hash := e.Conflicting(of.Payload)
	return edited(payload, func(name string, value json.RawMessage) (json.RawMessage, error) {
		switch name {
		case "payload":
			return erased, nil
		case "conflictHash":
			return json.RawMessage(strconv.Quote(hash)), nil
		case "firstHash":
			return json.RawMessage(strconv.Quote(first)), nil
		}
		return value, nil
	})
}

// withoutPayloads returns samples of refused usage without the payloads.
func withoutPayloads(samples json.RawMessage) (json.RawMessage, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(samples, &list); err != nil || list == nil {
		return samples, err
	}
	for i := range list {
		var err error
		if list[i], err = edited(list[i], replaced(map[string]string{"payload": ""})); err != nil {
			return nil, err
		}
	}
	return json.Marshal(list)
}

// replaced returns an edit that replaces members, or leaves out those with an empty text.
func replaced(by map[string]string) func(string, json.RawMessage) (json.RawMessage, error) {
	return func(name string, value json.RawMessage) (json.RawMessage, error) {
		if text, ok := by[name]; ok {
			return json.RawMessage(text), nil
		}
		return value, nil
	}
}

// edited returns a JSON object with other values, the members in their order and each unchanged byte as it was. A member with an empty value is left out.
func edited(object []byte, edit func(name string, value json.RawMessage) (json.RawMessage, error)) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	out := append(make([]byte, 0, len(object)), '{')
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if value, err = edit(name, value); err != nil {
			return nil, err
		}
		if len(value) == 0 {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(strictjson.AppendString(out, []byte(name)), ':'), value...)
	}
	return append(out, '}'), nil
}
