package codec

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/meterplex/meterplex/events"
)

// The body of a log row is the event's payload without the parts that other columns
// of the row already hold. For the two subjects that make up most of the log, the
// body is an array of the remaining members, each unchanged, so that the payload can
// be rebuilt byte for byte from the body, the key and the time of usage:
//
//	recorded usage:  [amount,"feature"], then metadata and source if present
//	a verdict:       [amount,"feature","eventId","subscription","featureType","periodKey"]
//
// A verdict with a grant has it before the period. One on admitted, late or corrected usage has there a grant, which is 0 if it names
// no grant, a count, and an object of the payload's other members. The feature is the first text of a verdict, and the period the last
// one: an index reads them there (migrations/0001_log.sql).
//
// Package intake writes the body of usage, VerdictBody that of a verdict. Any other payload is complete, as an
// object, which a short body never is. The database rebuilds payloads in the same
// way for readers in SQL (whole_payload).

// members are the values of a body, in its order; nil behind its end.
type members [9][]byte

// Numbers of members of verdicts.
const (
	verdictMembers = 6
	grantMembers   = 7
	moreMembers    = 9
)

// KeptHash is the hash that the log stores. It is also nil if the hash follows from
// the row, as for recorded usage in version 1 of the canonical form.
func KeptHash(p *events.Pending) []byte {
	if p.Subject == events.UsageRecorded && p.Canonical == 1 {
		return nil
	}
	return PayloadHash(p)
}

// WholePayload returns the complete payload of a log row, in new memory. A body that
// is not short is returned unchanged.
func WholePayload(subject events.Subject, key string, at time.Time, body []byte) []byte {
	if len(body) > 0 && body[0] == '[' && len(key) > 2 {
		var list members
		n := split(body, list[:])
		switch {
		case subject == events.UsageRecorded && n >= 2 && n <= 4:
			return wholeUsage(&list, key[2:], at, len(body))
		case subject == events.UsageValidated && (n == verdictMembers || n == grantMembers || n == moreMembers):
			return wholeVerdict(list[:n], key, at, len(body))
		}
	}
	return append(make([]byte, 0, len(body)), body...)
}

// UsagePayload returns the payload of recorded usage from its short body. The id is
// the text of the eventId between its quotes.
func UsagePayload(body, id []byte, at time.Time) []byte {
	var list members
	split(body, list[:])
	return wholeUsage(&list, string(id), at, len(body))
}

func wholeUsage(members *members, id string, at time.Time, size int) []byte {
	dst := make([]byte, 0, size+len(id)+120)
	dst = append(append(dst, `{"amount":`...), members[0]...)
	dst = append(append(dst, `,"eventId":"`...), id...)
	dst = append(append(dst, `","feature":`...), members[1]...)
	if len(members[2]) > 0 && members[2][0] != 'n' {
		dst = append(append(dst, `,"metadata":`...), members[2]...)
	}
	if members[3] != nil {
		dst = append(append(dst, `,"source":`...), members[3]...)
	}
	dst = AppendTime(append(dst, `,"timestamp":"`...), at)
	return append(dst, `","type":"usage"}`...)
}

func wholeVerdict(members [][]byte, key string, at time.Time, size int) []byte {
	count := []byte("1")
	if len(members) == moreMembers {
		count = members[6]
	}
	dst := make([]byte, 0, size+len(key)+170)
	dst = append(append(dst, `{"rawPosition":`...), key[2:]...)
	dst = append(append(dst, `,"eventId":`...), members[2]...)
	dst = append(append(dst, `,"feature":`...), members[1]...)
	dst = append(append(dst, `,"amount":`...), members[0]...)
	dst = append(append(dst, `,"count":`...), count...)
	dst = AppendTime(append(dst, `,"timestamp":"`...), at)
	dst = append(append(dst, `","validatedSubscriptionId":`...), members[3]...)
	dst = append(append(dst, `,"featureType":`...), members[4]...)
	dst = append(append(dst, `,"periodKey":`...), members[len(members)-1]...)
	if len(members) > verdictMembers && string(members[5]) != "0" {
		dst = append(append(dst, `,"grant":`...), members[5]...)
	}
	if len(members) == moreMembers {
		return append(append(dst, ','), members[7][1:]...)
	}
	return append(dst, '}')
}

// split stores the values of an array in into and returns their number; 0 if they do
// not fit or do not parse.
func split(array []byte, into [][]byte) int {
	rest := array[1:]
	for i := range into {
		n := valueEnd(rest)
		if n == 0 || n == len(rest) {
			return 0
		}
		into[i] = rest[:n]
		if string(rest[n:]) == "]" {
			return i + 1
		}
		rest = rest[n+1:]
	}
	return 0
}

// AppendTime writes a time in the form of payloads and responses: RFC 3339 in UTC
// with Z, in microseconds, without trailing zeros of the fraction. Equal instants
// give equal texts.
func AppendTime(dst []byte, t time.Time) []byte {
	return time.UnixMicro(t.UnixMicro()).UTC().AppendFormat(dst, time.RFC3339Nano)
}

// valueEnd returns the length of the JSON value at the start of b, which it does not
// validate; 0 if it is missing.
func valueEnd(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			if quoted = !quoted; !quoted && depth == 0 {
				return i + 1
			}
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case c == ',' && depth == 0:
			return i
		}
	}
	return len(b)
}

// PayloadOf returns the complete payload of a pending event.
func PayloadOf(p *events.Pending) json.RawMessage {
	if len(p.Payload) > 0 && p.Payload[0] == '{' {
		return p.Payload
	}
	return WholePayload(p.Subject, p.DedupeKey, p.OccurredAt, p.Payload)
}

// PayloadHash identifies the payload for comparison with another one under the same key: a
// byte for the version of the canonical form, then the SHA-256 of Sent or the payload; nil if payloads are
// not compared. It is computed on demand, because new events never need it.
func PayloadHash(p *events.Pending) []byte {
	if p.Canonical == 0 {
		return nil
	}
	compared := p.Sent
	if compared == nil {
		compared = PayloadOf(p)
	}
	sum := sha256.Sum256(compared)
	return append([]byte{p.Canonical}, sum[:]...)
}
