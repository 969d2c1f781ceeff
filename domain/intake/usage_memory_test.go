package intake

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain/strictjson"
)

// largestBody is the size of the largest body of the API.
const largestBody = 4 << 20

// filled returns the largest body that begins and ends with these texts, with parts between them, separated by commas.
func filled(begin, end string, part func(n int) string) []byte {
	var b strings.Builder
	b.WriteString(begin)
	for n := 0; ; n++ {
		next := part(n)
		if b.Len()+1+len(next)+len(end) > largestBody {
			return []byte(b.String() + end)
		}
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(next)
	}
}

func name(n int) string { return fmt.Sprintf(`"%x":0`, n) }

func same(part string) func(int) string { return func(int) string { return part } }

// hostileBodies are bodies of 4 MiB that cost many times their size if a reader collects what they hold.
func hostileBodies() map[string][]byte {
	const event, end = `{"events":[{"eventId":"a","feature":"calls","amount":1,"timestamp":"2026-05-01T12:00:00Z","metadata":{`, `}}]}`
	const ce = `"specversion":"1.0","id":"a","source":"s","type":"calls","time":"2026-05-01T12:00:00Z","data":{"amount":1}`
	deep := strings.Repeat(`{"a":`, 40) + "{"
	return map[string][]byte{
		"members of the body":    filled(`{`, `}`, name),
		"members of an event":    filled(`{"events":[{`, `}]}`, name),
		"members of metadata":    filled(event, end, name),
		"nested members":         filled(event+`"a":{`, `}`+end, name),
		"deep members":           filled(event+`"a":`+deep, strings.Repeat("}", 41)+end, name),
		"escaped members":        filled(event, end, func(n int) string { return fmt.Sprintf(`"\u0061%x":0`, n) }),
		"objects of 500 members": filled(event+`"a":[`, `]`+end, func(int) string { return string(filledTo(500)) }),
		"growing numbers":        filled(event+`"a":[`, `]`+end, same("1e20")),
		"a long text":            filled(event+`"a":"`, `"`+end, same(strings.Repeat("a", 1000))),
		"an escaped text":        filled(event+`"a":"`, `"`+end, same(strings.Repeat(`\u0061`, 1000))),
		"a long name":            filled(event+`"`, `":0`+end, same(strings.Repeat("a", 1000))),
		"events of one byte":     filled(`{"events":[`, `]}`, same("1")),
		"empty events":           filled(`{"events":[`, `]}`, same("{}")),
		"events of metadata": filled(`{"events":[`, `]}`, func(int) string {
			return event[len(`{"events":[`):] + `"a":"` + strings.Repeat("x", 4070) + `"}}`
		}),
		"attributes":              filled(`[{`+ce+`,`, `}]`, func(n int) string { return fmt.Sprintf(`"a%x":""`, n) }),
		"members of an attribute": filled(`[{`+ce+`,"a":{`, `}}]`, name),
	}
}

// filledTo returns an object of so many members.
func filledTo(members int) []byte {
	var b strings.Builder
	for n := range members {
		b.WriteString("," + name(n))
	}
	return []byte("{" + b.String()[1:] + "}")
}

func decodeAny(body []byte) (int, error) {
	decode := DecodeBatch
	if body[0] == '[' {
		decode = DecodeCloudEventBatch
	}
	items, err := decode(body)
	return len(items), err
}

// P9: a body takes memory in proportion to its size, whatever it holds: else a few requests of one key could end the process of all.
func TestP9_ADecodedBodyTakesAboutItsSize(t *testing.T) {
	const times = 2 // the body's size: texts are unescaped, and valid metadata is copied
	for name, body := range hostileBodies() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := decodeAny(body)
		runtime.ReadMemStats(&after)
		took := float64(after.TotalAlloc-before.TotalAlloc) / largestBody
		t.Logf("%-24s %5.2f times the body: %d items, %v", name, took, n, err)
		if took > times {
			t.Errorf("%s: decoding allocates %.1f times the body", name, took)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	bodies := hostileBodies()
	var events []string
	for n := range 500 {
		events = append(events, fmt.Sprintf(`{"eventId":"evt-%d","feature":"api_calls","amount":1,"timestamp":"2026-05-01T12:00:00Z",`+
			`"metadata":{"region":"eu","model":"large","team":"a%d"}}`, n, n%7))
	}
	bodies["usual batch"] = []byte(`{"events":[` + strings.Join(events, ",") + `]}`)
	for _, name := range []string{"usual batch", "members of metadata", "members of an event", "objects of 500 members"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(bodies[name])))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = decodeAny(bodies[name])
			}
		})
	}
	b.Run("check of a small body", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if strictjson.Check([]byte(events[0])) != nil {
				b.Fatal("refused")
			}
		}
	})
}
