package events

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

const goodParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// W3C Trace Context, section 3.2: a malformed traceparent is ignored as a whole.
func TestMalformedTraceParentsAreIgnored(t *testing.T) {
	for header, want := range map[string]bool{
		goodParent: true, "cc" + goodParent[2:]: true, goodParent[:53] + "ff": true,
		"": false, "ff" + goodParent[2:]: false, strings.ToUpper(goodParent): false, goodParent[:54]: false, goodParent + "-x": false,
		goodParent + "0": false,
		"00-" + strings.Repeat("0", 32) + goodParent[35:]: false, goodParent[:36] + strings.Repeat("0", 16) + goodParent[52:]: false,
		strings.Repeat("-", 55): false, strings.Repeat("0", 55): false, goodParent[:3] + "g" + goodParent[4:]: false,
		goodParent[:2] + "0" + goodParent[3:]: false, strings.Repeat(goodParent, 80): false, "00-é" + goodParent[5:]: false,
	} {
		trace, span, ok := ParseTraceParent(header)
		if ok != want {
			t.Errorf("%.80q: %v, want %v", header, ok, want)
		}
		if ok && (trace != uuid.MustParse("0af7651916cd43dd8448eb211c80319c") || span != [8]byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33,
			0x31}) || !ok && (trace != uuid.Nil || span != [8]byte{}) {
			t.Errorf("%.80q: trace %x, span %x", header, trace, span)
		}
	}
}

// The span of an event is the end of its eventId, in the header and for every reader of it.
func TestTheTraceParentOfAnEventNamesItsSpan(t *testing.T) {
	trace, id := uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"), uuid.MustParse("01890000-0000-7000-8123-456789abcdef")
	header := string(AppendTraceParent([]byte("x"), trace, id))
	if header != "x00-4bf92f3577b34da6a3ce929d0e0e4736-8123456789abcdef-00" {
		t.Errorf("%s", header)
	}
	if gotTrace, span, ok := ParseTraceParent(header[1:]); !ok || gotTrace != trace || span != SpanID(id) {
		t.Errorf("read trace %s, span %x, %v", gotTrace, span, ok)
	}
}
