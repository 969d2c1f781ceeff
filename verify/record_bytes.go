package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// sameBytes compares a record with its event byte for byte. A stand-in for an event that
// could not be published must be empty.
func (t *topicPass) sameBytes(where offset, r *kgo.Record, s *source) {
	t.recordBytes.n++
	tenant := tenantText(s.tenant)
	id, standIn := header(r, "mp-event-id"), header(r, "mp-withheld") != ""
	t.recordBytes.expect(id == s.id.String() && string(r.Key) == tenant && header(r, "mp-tenant") == tenant &&
		header(r, "mp-previous") == strconv.FormatInt(s.previous, 10),
		"%s has the key %.60q and event %s after %s; %s is %s of %s after %d", where, r.Key, id, header(r, "mp-previous"), t.at(s.position),
		s.id, tenant, s.previous)
	parent := s.traceParent()
	t.recordBytes.expect(header(r, "traceparent") == parent, "%s has the traceparent %.80q, %s has %q", where, header(r, "traceparent"),
		t.at(s.position), parent)
	if standIn {
		t.recordBytes.add(1, "stand-ins")
		t.recordBytes.expect(t.standIns[s.position] && len(r.Value) == 0, "%s stands in for %s, which was not withheld", where,
			t.at(s.position))
		return
	}
	expected, err := wire(t.p, s)
	if err != nil {
		t.recordBytes.fault("%s cannot be encoded: %v", t.at(s.position), err)
		return
	}
	if of, err := s.termOf(); err == nil {
		name := of.Type + ".v" + strconv.Itoa(of.Version)
		t.recordBytes.expect(header(r, "mp-subject") == name, "%s has the subject %.100q, %s is %s", where, header(r, "mp-subject"),
			t.at(s.position), name)
	}
	if t.erased.of(s.tenant) && !bytes.Equal(expected, r.Value) && sameButErased(expected, r.Value) {
		t.recordBytes.add(1, "records from before an erasure")
		return
	}
	if !bytes.Equal(expected, r.Value) {
		t.recordBytes.fault("%s differs from %s in the log%s", where, t.at(s.position), difference(expected, r.Value))
	}
}

// traceParent is the header of the event's records: its trace, the last 8 bytes of its id as the span, and no flags.
func (s *source) traceParent() string {
	if s.correlation == uuid.Nil {
		return ""
	}
	return fmt.Sprintf("00-%x-%x-00", s.correlation[:], s.id[8:])
}

// difference shows the first difference of two texts.
func difference(want, got []byte) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	show := func(b []byte) []byte { return b[min(max(i-20, 0), len(b)):min(i+40, len(b))] }
	return fmt.Sprintf(": …%s… instead of …%s…", show(got), show(want))
}

// sameButErased reports whether a record is an event as it was before the erasure of its personal data: the members of both are the same,
// or an erasure takes the earlier value out.
func sameButErased(erased, was []byte) bool {
	var now, before any
	for text, to := range map[*[]byte]*any{&erased: &now, &was: &before} {
		d := json.NewDecoder(bytes.NewReader(*text))
		d.UseNumber()
		if d.Decode(to) != nil {
			return false
		}
	}
	var copied struct {
		Payload struct{ SourceSubject string }
	}
	_ = json.Unmarshal(erased, &copied) // it is read above; another payload has no copy
	of := copied.Payload.SourceSubject
	return erasedFrom(now, before, "", of != "" && !slices.Contains(keptCopies, of))
}

// keptCopies are the events whose copies in dead letters keep all members but metadata.
var keptCopies = []string{
	"meterplex.usage.event.retried.v1", "meterplex.usage.event.recorded.v1", "meterplex.usage.event.admitted.v1",
	"meterplex.usage.event.corrected.v1",
	"meterplex.usage.event.retracted.v1", "meterplex.usage.event.validated.v1", "meterplex.usage.event.reaggregated.v1",
}

// erasedFrom compares the values of a member. Of a copy of another event in a dead letter, any member may be left out.
func erasedFrom(now, before any, path string, other bool) bool {
	switch n := now.(type) {
	case map[string]any:
		b, same := before.(map[string]any)
		for name, value := range n {
			same = same && erasedFrom(value, b[name], path+"/"+name, other)
		}
		for name := range b {
			_, kept := n[name]
			same = same && (kept || other && path == "/payload/payload" ||
				slices.Contains([]string{"metadata", "externalIds", "payload", "pointer", "key", "value"}, name))
		}
		return same
	case []any:
		b, same := before.([]any)
		same = same && len(b) == len(n)
		for i := 0; same && i < len(n); i++ {
			same = erasedFrom(n[i], b[i], path, other)
		}
		return same
	}
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "name", "reason":
		return now == before || now == "erased"
	case "firstHash", "conflictHash":
		return now == before || now == erasedHash
	case "payload", "usage": // one that was no object
		return now == before || now == nil
	case "idempotencyKey": // of conflicts and refusals it has a hash of the content
		was := fmt.Sprint(before)
		return now == before || strings.HasPrefix(was, "k/") || strings.HasPrefix(was, "i/")
	}
	return now == before
}
