package codec

import (
	"bytes"
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
//	one that corrects: [amount,"feature","eventId","subscription","featureType",count,targetPosition,"targetEventId",before,after,"periodKey"]
//
// A grant is the member before the period.
//
// The count of the last is 0 for a correction and -1 for a retraction. The feature is the first text of a verdict, and the period the last
// one: an index reads them there (migrations/0001_log.sql).
//
// A payload in any other form than this service writes is kept complete, as an
// object, which a short body never is. The database rebuilds payloads in the same
// way for readers in SQL (whole_payload).

// members are the values of a body, in its order; nil behind its end.
type members [12][]byte

// Numbers of members of verdicts.
const (
	verdictMembers    = 6
	correctingMembers = 11
)

// hasGrant reports whether a verdict with a number of members has a grant.
func hasGrant(n int) bool { return n == verdictMembers+1 || n == correctingMembers+1 }

// AppendBody appends an event's payload in the form that the log stores.
func AppendBody(dst []byte, p *events.Pending) []byte {
	if p.Body != nil {
		return append(dst, p.Body...)
	}
	r := bodyReader{rest: p.Payload}
	var list members
	switch p.Subject {
	case events.UsageRecorded:
		r.usage(&list, p)
	case events.UsageValidated:
		r.verdict(&list, p)
	default:
		r.bad = true
	}
	if r.bad || len(r.rest) != 0 {
		return append(dst, p.Payload...)
	}
	separator := byte('[')
	for _, m := range list {
		if m != nil {
			dst = append(append(dst, separator), m...)
			separator = ','
		}
	}
	return append(dst, ']')
}

// KeptHash is the hash that the log stores. It is also nil if the hash follows from
// the row, as for recorded usage in version 1 of the canonical form.
func KeptHash(p *events.Pending) []byte {
	if p.Subject == events.UsageRecorded && p.Canonical == 1 {
		return nil
	}
	return PayloadHash(p)
}

// bodyReader splits a payload into members. It compares or keeps every byte, so that
// an accepted payload can be rebuilt; any unexpected byte sets bad.
type bodyReader struct {
	rest []byte
	bad  bool
}

func (r *bodyReader) skip(text string) {
	if r.bad || len(r.rest) < len(text) || string(r.rest[:len(text)]) != text {
		r.bad = true
		return
	}
	r.rest = r.rest[len(text):]
}

// skipKey skips the text of a key after its prefix.
func (r *bodyReader) skipKey(key, prefix string) {
	if len(key) <= len(prefix) || key[:len(prefix)] != prefix {
		r.bad = true
		return
	}
	r.skip(key[len(prefix):])
}

func (r *bodyReader) skipTime(t time.Time) {
	var buf [40]byte
	text := AppendTime(buf[:0], t)
	if r.bad || !bytes.HasPrefix(r.rest, text) {
		r.bad = true
		return
	}
	r.rest = r.rest[len(text):]
}

// value skips a member's name and reads its value.
func (r *bodyReader) value(name string) []byte {
	r.skip(name)
	n := valueEnd(r.rest)
	r.bad = r.bad || n == 0
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return v
}

func (r *bodyReader) usage(members *members, p *events.Pending) {
	members[0] = r.value(`{"amount":`)
	r.skip(`,"eventId":"`)
	r.skipKey(p.DedupeKey, "u/")
	members[1] = r.value(`","feature":`)
	if bytes.HasPrefix(r.rest, []byte(`,"metadata":`)) {
		members[2] = r.value(`,"metadata":`)
		r.bad = r.bad || members[2][0] == 'n' // null means no metadata
	}
	if bytes.HasPrefix(r.rest, []byte(`,"source":`)) {
		if members[2] == nil {
			members[2] = []byte("null")
		}
		members[3] = r.value(`,"source":`)
	}
	r.skip(`,"timestamp":"`)
	r.skipTime(p.OccurredAt)
	r.skip(`","type":"usage"}`)
}

func (r *bodyReader) verdict(members *members, p *events.Pending) {
	r.skip(`{"rawPosition":`)
	r.skipKey(p.DedupeKey, "v/")
	members[2] = r.value(`,"eventId":`)
	members[1] = r.value(`,"feature":`)
	members[0] = r.value(`,"amount":`)
	count := r.value(`,"count":`)
	r.skip(`,"timestamp":"`)
	r.skipTime(p.OccurredAt)
	members[3] = r.value(`","validatedSubscriptionId":`)
	members[4] = r.value(`,"featureType":`)
	period := r.value(`,"periodKey":`)
	var grant []byte
	if bytes.HasPrefix(r.rest, []byte(`,"grant":`)) {
		grant = r.value(`,"grant":`)
	}
	last := verdictMembers - 1
	switch string(count) {
	case "1":
	case "0", "-1":
		r.skip(`,"kind":"` + correctingKind(count) + `"`)
		members[5] = count
		members[6] = r.value(`,"targetPosition":`)
		members[7] = r.value(`,"targetEventId":`)
		members[8] = r.value(`,"before":`)
		members[9] = r.value(`,"after":`)
		last = correctingMembers - 1
	default:
		r.bad = true
	}
	if grant != nil {
		members[last] = grant
		last++
	}
	members[last] = period
	r.skip(`}`)
}

// correctingKind returns what a verdict with a count of 0 or -1 is.
func correctingKind(count []byte) string {
	if string(count) == "0" {
		return events.TypeCorrection
	}
	return events.TypeRetraction
}

// WholePayload returns the complete payload of a log row, in new memory. A body that
// is not in a form of AppendBody is returned unchanged.
func WholePayload(subject events.Subject, key string, at time.Time, body []byte) []byte {
	if len(body) > 0 && body[0] == '[' && len(key) > 2 {
		var list members
		n := split(body, list[:])
		switch {
		case subject == events.UsageRecorded && n >= 2 && n <= 4:
			return wholeUsage(&list, key[2:], at, len(body))
		case subject == events.UsageValidated && (n == verdictMembers || n == correctingMembers || hasGrant(n)):
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
	count, corrects := []byte("1"), len(members) >= correctingMembers
	if corrects {
		count = members[5]
	}
	dst := make([]byte, 0, size+len(key)+270)
	dst = append(append(dst, `{"rawPosition":`...), key[2:]...)
	dst = append(append(dst, `,"eventId":`...), members[2]...)
	dst = append(append(dst, `,"feature":`...), members[1]...)
	dst = append(append(dst, `,"amount":`...), members[0]...)
	dst = append(append(dst, `,"count":`...), count...)
	dst = AppendTime(append(dst, `,"timestamp":"`...), at)
	dst = append(append(dst, `","validatedSubscriptionId":`...), members[3]...)
	dst = append(append(dst, `,"featureType":`...), members[4]...)
	dst = append(append(dst, `,"periodKey":`...), members[len(members)-1]...)
	if hasGrant(len(members)) {
		dst = append(append(dst, `,"grant":`...), members[len(members)-2]...)
	}
	if corrects {
		dst = append(append(append(dst, `,"kind":"`...), correctingKind(count)...), '"')
		dst = append(append(dst, `,"targetPosition":`...), members[6]...)
		dst = append(append(dst, `,"targetEventId":`...), members[7]...)
		dst = append(append(dst, `,"before":`...), members[8]...)
		dst = append(append(dst, `,"after":`...), members[9]...)
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

// PayloadOf returns the complete payload of a pending event, rebuilt from Body if only Body is set.
func PayloadOf(p *events.Pending) json.RawMessage {
	if p.Body != nil {
		return WholePayload(p.Subject, p.DedupeKey, p.OccurredAt, p.Body)
	}
	return p.Payload
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
