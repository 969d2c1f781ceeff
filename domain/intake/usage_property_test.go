package intake

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/meterplex/meterplex/domain"
	"pgregory.net/rapid"
)

// tree is a JSON value: nil, bool, int, string, []tree or []pair.
type tree any

type pair struct {
	name  string
	value tree
}

func drawText(t *rapid.T, label string) string {
	return rapid.StringOfN(rapid.SampledFrom([]rune("ab\"\\/\n\x01\x7fé\u2028\ue000\uffff😀 ")), 0, 5, -1).Draw(t, label)
}

func drawTree(t *rapid.T, level int) tree {
	kinds := 4
	if level < MaxMetadataLevels {
		kinds = 6
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.IntRange(-domain.MaxAmount, domain.MaxAmount).Draw(t, "int")
	case 3:
		return drawText(t, "string")
	case 4:
		list := make([]tree, rapid.IntRange(0, 3).Draw(t, "length"))
		for i := range list {
			list[i] = drawTree(t, level+1)
		}
		return list
	}
	return drawObject(t, level+1, 0)
}

func drawObject(t *rapid.T, level, least int) []pair {
	names := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) string { return drawText(t, "name") }), least, 4, rapid.ID).Draw(t,
		"names")
	object := make([]pair, len(names))
	for i, name := range names {
		object[i] = pair{name, drawTree(t, level)}
	}
	return object
}

// writer writes one of the many JSON texts with the same value.
type writer struct {
	*rand.Rand
	strings.Builder
}

func (w *writer) space() {
	for w.IntN(3) == 0 {
		w.WriteByte(" \t\r\n"[w.IntN(4)])
	}
}

func (w *writer) token(s string) {
	w.space()
	w.WriteString(s)
	w.space()
}

func (w *writer) text(s string) {
	w.space()
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r < ' ' || w.IntN(3) == 0:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(w, []string{`\u%04x`, `\u%04X`}[w.IntN(2)], unit)
			}
		case r == '"' || r == '\\' || r == '/' && w.IntN(2) == 0:
			w.WriteString(`\` + string(r))
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
	w.space()
}

func (w *writer) integer(n int) {
	s := strconv.Itoa(n)
	switch w.IntN(4) {
	case 0:
		s += ".0"
	case 1:
		s += ".0e+0"
		if n != 0 {
			s = strconv.Itoa(n) + "0e-1"
		}
	case 2:
		s += []string{"E0", "e+00", ".000e-0"}[w.IntN(3)]
	}
	w.token(s)
}

func (w *writer) value(v tree) {
	switch v := v.(type) {
	case nil:
		w.token("null")
	case bool:
		w.token(strconv.FormatBool(v))
	case int:
		w.integer(v)
	case string:
		w.text(v)
	case []tree:
		w.token("[")
		for i, e := range v {
			if i > 0 {
				w.token(",")
			}
			w.value(e)
		}
		w.token("]")
	case []pair:
		parts := make([]func(), len(v))
		for i, p := range v {
			parts[i] = func() { w.text(p.name); w.token(":"); w.value(p.value) }
		}
		w.object(parts)
	}
}

func (w *writer) object(members []func()) {
	w.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	w.token("{")
	for i, member := range members {
		if i > 0 {
			w.token(",")
		}
		member()
	}
	w.token("}")
}

func (w *writer) time(micros int64) {
	zone := time.FixedZone("", (w.IntN(2*1439+1)-1439)*60)
	s := time.UnixMicro(micros).In(zone).Format("2006-01-02T15:04:05.000000Z07:00")
	head, offset := s[:26], s[26:]
	switch w.IntN(3) {
	case 0:
		head += []string{"9", "99", "999", "001"}[w.IntN(4)]
	case 1:
		head = strings.TrimSuffix(strings.TrimRight(head, "0"), ".")
	}
	w.text(head + offset)
}

type model struct {
	id, feature string
	amount      int
	micros      int64
	metadata    []pair
}

func drawModel(t *rapid.T) model {
	return model{
		id:       rapid.StringMatching(`[!-~]{1,40}`).Draw(t, "id"),
		feature:  rapid.StringMatching(`[a-z][a-z0-9_.\-]{0,20}`).Draw(t, "feature"),
		amount:   rapid.IntRange(1, domain.MaxAmount).Draw(t, "amount"),
		micros:   rapid.Int64Range(-62135510400e6, 253402214399e6).Draw(t, "micros"),
		metadata: drawObject(t, 1, 0),
	}
}

func (m model) write(seed uint64) string {
	w := &writer{Rand: rand.New(rand.NewPCG(seed, 1))}
	member := func(name string, value func()) func() {
		return func() { w.text(name); w.token(":"); value() }
	}
	members := []func(){
		member("eventId", func() { w.text(m.id) }),
		member("feature", func() { w.text(m.feature) }),
		member("amount", func() { w.token(strconv.Itoa(m.amount)) }),
		member("timestamp", func() { w.time(m.micros) }),
	}
	if len(m.metadata) > 0 || w.IntN(2) == 0 {
		members = append(members, member("metadata", func() { w.value(m.metadata) }))
	} else if w.IntN(2) == 0 {
		members = append(members, member("metadata", func() { w.token("null") }))
	}
	if w.IntN(2) == 0 {
		members = append(members, member("type", func() { w.text("usage") }))
	}
	w.object(members)
	return w.String()
}

// A retry with other spacing, member order, escapes or time zone is the same event.
func TestP2_SameEventSameHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		one := m.write(rapid.Uint64().Draw(t, "seed"))
		two := m.write(rapid.Uint64().Draw(t, "other seed"))
		items, err := DecodeBatch(inBatch(one, two))
		if err != nil || items[0].Err != nil || items[1].Err != nil {
			t.Fatalf("%v %v\n%s\n%s", err, items, one, two)
		}
		a, b := items[0].Event, items[1].Event
		if string(a.Payload()) != string(b.Payload()) {
			t.Fatalf("%s\n%s\nbecame\n%s\n%s", one, two, a.Payload(), b.Payload())
		}
		if a.EventID != m.id || a.Feature != m.feature || a.Amount != int64(m.amount) || a.Timestamp.UnixMicro() != m.micros {
			t.Fatalf("%+v became %+v", m, a)
		}
	})
}

// An event that differs in any value is another event, and a conflict under the same id.
func TestP4_OtherEventOtherPayload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		changed := m
		switch rapid.IntRange(0, 6).Draw(t, "change") {
		case 0:
			changed.id += "x"
		case 1:
			changed.feature += "x"
		case 2:
			changed.amount = m.amount%domain.MaxAmount + 1
		case 3:
			changed.micros++
		case 4:
			changed.metadata = append(slices.Clone(m.metadata), pair{"new", nil})
		case 5:
			changed.metadata = append(slices.Clone(m.metadata), pair{"list", []tree{1, 2}})
			m.metadata = append(slices.Clone(m.metadata), pair{"list", []tree{2, 1}})
		case 6:
			changed.metadata = append(slices.Clone(m.metadata), pair{"value", 1})
			m.metadata = append(slices.Clone(m.metadata), pair{"value", "1"})
		}
		seed := rapid.Uint64().Draw(t, "seed")
		items, err := DecodeBatch(inBatch(m.write(seed), changed.write(seed)))
		if err != nil || items[0].Err != nil || items[1].Err != nil {
			t.Fatalf("%v %+v", err, items)
		}
		if string(items[0].Event.Payload()) == string(items[1].Event.Payload()) {
			t.Fatalf("%+v and %+v are both %s", m, changed, items[0].Event.Payload())
		}
	})
}
