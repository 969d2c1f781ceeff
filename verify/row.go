package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Subjects and topics by number; the numbers are frozen.
const (
	recorded = 1 + iota
	validated
	rejected
	conflicted
	_
	retried
	refused
	admitted
	corrected

	publishFailed     = 10
	aggregationFailed = 11
	reaggregated      = 12
	letterRetried     = 14
	letterClosed      = 15
	retracted         = 19
	refusalsSeen      = 20

	tenantCreated  = 30
	tenantChanged  = 31
	keyCreated     = 32
	keyRotated     = 33
	keyRevoked     = 34
	featureDefined = 35
	planDefined    = 36

	subscriptionCreated = 37
	subscriptionChanged = 38
	priceDefined        = 39

	reservationHeld     = 60
	reservationExtended = 61
	reservationReleased = 62
	reservationExpired  = 63
	accountReconciled   = 64
	thresholdCrossed    = 65
	thresholdChanged    = 66
	webhookChanged      = 67

	periodRequested    = 70
	periodFrozen       = 71
	periodClosed       = 72
	periodReopened     = 73
	adjustmentProposed = 74
	adjustmentDecided  = 75
	pushFailed         = 77
	pushCompared       = 78
	offboardingStepped = 80
	erasureStepped     = 81

	topicRaw       = 1
	topicValidated = 2
	topicLetters   = 3
	maxTopic       = 16
)

// row is a row of the log.
type row struct {
	position, previous   int64
	recorded, occurred   int64 // microseconds since the database's epoch
	id, tenant, cause    uuid.UUID
	correlation          uuid.UUID
	epoch, origin        int32
	topic, subject       int16
	key, hash, body, off []byte // off: the header Meterplex-Replay
}

const rowColumns = `position, previous_position, recorded_at, occurred_at, event_id, tenant_id, causation_id, correlation_id,
 epoch, origin, topic, subject, dedupe_key, hash, body, replay`

// read decodes the binary form of rowColumns. The row shares its memory.
func (r *row) read(raw [][]byte) error {
	for i, size := range []int{8, 8, 8, 8, 16, 16, 0, 0, 4, 4, 2, 2} {
		if size > 0 && len(raw[i]) != size {
			return fmt.Errorf("column %d of the log has %d bytes", i+1, len(raw[i]))
		}
	}
	r.position, r.previous = int64(binary.BigEndian.Uint64(raw[0])), int64(binary.BigEndian.Uint64(raw[1]))
	r.recorded, r.occurred = int64(binary.BigEndian.Uint64(raw[2])), int64(binary.BigEndian.Uint64(raw[3]))
	r.id, r.tenant = uuid.UUID(raw[4]), uuid.UUID(raw[5])
	r.cause, r.correlation = optional(raw[6]), optional(raw[7])
	r.epoch, r.origin = int32(binary.BigEndian.Uint32(raw[8])), int32(binary.BigEndian.Uint32(raw[9]))
	r.topic, r.subject = int16(binary.BigEndian.Uint16(raw[10])), int16(binary.BigEndian.Uint16(raw[11]))
	r.key, r.hash, r.body, r.off = raw[12], raw[13], raw[14], raw[15]
	return nil
}

func optional(b []byte) uuid.UUID {
	if len(b) != 16 {
		return uuid.Nil
	}
	return uuid.UUID(b)
}

// databaseEpoch is 2000-01-01 in microseconds of Unix.
const databaseEpoch = 946684800_000_000

func moment(micros int64) time.Time { return time.UnixMicro(micros + databaseEpoch).UTC() }

// partitionOf returns a tenant's partition: SHA-256 of its id as text, modulo 32.
func partitionOf(tenant uuid.UUID) int16 {
	if tenant == uuid.Nil {
		return 0
	}
	return int16(sha256.Sum256([]byte(tenant.String()))[0] % partitions)
}

// content has the members of every kind of payload. A compact body is decoded into it, too.
type content struct {
	EventID                 string
	Feature                 string
	Amount                  json.Number
	Count                   int64
	Timestamp               time.Time
	Metadata                json.RawMessage
	RawPosition             int64
	ValidatedSubscriptionID uuid.UUID
	FeatureType, PeriodKey  string
	Grant                   int64           // of a verdict; 0: it names none
	Admitted                json.RawMessage // of admitted usage an object, of its verdict true
	ID                      uuid.UUID       // of a subscription
	Entitlements            json.RawMessage
	DeadLetterID            uuid.UUID
	Attempt                 int
	SourcePosition          int64
	Stage, Status, Topic    string
	FirstHash, ConflictHash string
	Payload                 json.RawMessage
	Validated               *content
	CorrectionRef           string // of a correction or a retraction
	// The members below are of the verdict on one.
	Kind                          string
	TargetPosition, Before, After int64
	TargetEventID                 string
	Late                          *late           // of a verdict that is an adjustment
	Rejected                      json.RawMessage // of a retry: whether its event had been rejected
	LateUsage                     string          // of a tenant
}

var errBody = errors.New("its body has an unknown form")

// decode decodes the row's body.
func (r *row) decode() (content, error) {
	var s content
	if len(r.body) == 0 || r.body[0] != '[' {
		err := json.Unmarshal(r.body, &s)
		return s, err
	}
	var members []json.RawMessage
	if err := json.Unmarshal(r.body, &members); err != nil || len(r.key) < 3 {
		return s, errBody
	}
	var err error
	switch {
	case r.subject == recorded && len(members) >= 2 && len(members) <= 4:
		s.Amount, s.EventID = json.Number(members[0]), string(r.key[2:])
		if s.Feature, err = textOf(members[1]); len(members) > 2 {
			s.Metadata = members[2]
		}
	case r.subject == validated && (len(members) == 6 || len(members) == 7 || len(members) == 9):
		err = s.verdict(members, string(r.key[2:]))
	default:
		return s, errBody
	}
	s.Timestamp = moment(r.occurred)
	return s, err
}

// verdict reads the members of the short body of a verdict. Before the period one with a grant has it; one with other members, too, has
// a grant or 0, a count and an object of those members.
func (s *content) verdict(members []json.RawMessage, position string) (err error) {
	var texts [5]string
	for i := 1; i < len(texts) && err == nil; i++ {
		texts[i], err = textOf(members[i])
	}
	s.Amount, s.Count, s.Feature, s.EventID, s.FeatureType = json.Number(members[0]), 1, texts[1], texts[2], texts[4]
	if err == nil {
		s.PeriodKey, err = textOf(members[len(members)-1])
	}
	if err == nil {
		s.ValidatedSubscriptionID, err = uuid.Parse(texts[3])
	}
	if err == nil {
		s.RawPosition, err = strconv.ParseInt(position, 10, 64)
	}
	if err == nil && len(members) > 6 {
		err = json.Unmarshal(members[5], &s.Grant)
	}
	if err == nil && len(members) == 9 {
		err = errors.Join(json.Unmarshal(members[6], &s.Count), json.Unmarshal(members[7], s))
	}
	return err
}

// textOf decodes a JSON string; strings with an escape are rare.
func textOf(m json.RawMessage) (s string, err error) {
	if n := len(m) - 1; n > 0 && m[0] == '"' && m[n] == '"' && bytes.IndexByte(m, '\\') < 0 {
		return string(m[1:n]), nil
	}
	return s, json.Unmarshal(m, &s)
}

// payload reconstructs the payload of a compact body, as docs/reference/log-events.md defines it for
// recorded usage (canonical JSON) and verdicts. All other bodies are the payload.
func (r *row) payload() ([]byte, error) {
	if len(r.body) == 0 || r.body[0] != '[' {
		return r.body, nil
	}
	var m []json.RawMessage
	if err := json.Unmarshal(r.body, &m); err != nil || len(r.key) < 3 {
		return nil, errBody
	}
	at := moment(r.occurred).Format(time.RFC3339Nano)
	switch {
	case r.subject == validated && (len(m) == 6 || len(m) == 7 || len(m) == 9):
		return verdictPayload(r.key[2:], at, m), nil
	case r.subject != recorded || len(m) < 2 || len(m) > 4:
		return nil, errBody
	}
	text := fmt.Appendf(nil, `{"amount":%s,"eventId":"%s","feature":%s`, m[0], r.key[2:], m[1])
	if len(m) > 2 && string(m[2]) != "null" {
		text = append(append(text, `,"metadata":`...), m[2]...)
	}
	if len(m) > 3 {
		text = append(append(text, `,"source":`...), m[3]...)
	}
	return fmt.Appendf(text, `,"timestamp":"%s","type":"usage"}`, at), nil
}

// verdictPayload is payload for a verdict.
func verdictPayload(raw []byte, at string, m []json.RawMessage) []byte {
	count, last := json.RawMessage("1"), len(m)-1
	if last == 8 {
		count = m[6]
	}
	text := fmt.Appendf(nil,
		`{"rawPosition":%s,"eventId":%s,"feature":%s,"amount":%s,"count":%s,"timestamp":"%s","validatedSubscriptionId":%s,"featureType":%s,`+
			`"periodKey":%s`,
		raw, m[2], m[1], m[0], count, at, m[3], m[4], m[last])
	if last > 5 && string(m[5]) != "0" {
		text = fmt.Appendf(text, `,"grant":%s`, m[5])
	}
	if last == 8 {
		return append(append(text, ','), m[7][1:]...)
	}
	return append(text, '}')
}

// bits is a set of positions.
type bits []uint64

// set adds n if it is from 0 to most, the greatest possible position. Other values, which
// their reader reports, must not size memory here.
func (b *bits) set(n, most int64) {
	if n < 0 || n > most {
		return
	}
	for int(n>>6) >= len(*b) {
		*b = append(*b, make([]uint64, max(64, len(*b)/4))...)
	}
	(*b)[n>>6] |= 1 << (n & 63)
}

// most is at least the greatest position of the set.
func (b bits) most() int64 { return int64(len(b))<<6 - 1 }

func (b bits) has(n int64) bool { return n >= 0 && int(n>>6) < len(b) && b[n>>6]&(1<<(n&63)) != 0 }
