package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func nest(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestCheck(t *testing.T) {
	for _, doc := range []string{
		`{}`, `[]`, ` {"a" : [1 , -0.5e+10, true,false , null, "x\u00e9\n\/"]} ` + "\r\n\t", `"😀"`, `"\ud83d\ude00"`, `0`, `-0`, `1e400`,
		`{"a":{"a":{"a":1}},"A":2}`, `{"":1," ":2}`, nest(64), `[{},{},[[]]]`, `"\u0000"`, `"` + "\x7f" + `"`,
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"k":11,"l":12,"m":13,"n":14,"o":15,"p":16,"q":17}`,
	} {
		if fault := Check([]byte(doc)); fault != nil {
			t.Errorf("%q is refused: %v", doc, fault)
		}
	}
	for _, doc := range []string{
		``, ` `, "\xef\xbb\xbf{}", "\xff\xfe{\x00}\x00", "{\"a\":\"\xff\"}", "\"\xed\xa0\x80\"", "\"\xc0\xa0\"", "\x00", "{}\x00", "{}{}",
		"{} x", "1 2",
		`{`, `[`, `"`, `"\`, `"\u12`, `"\u12g4"`, `"\x"`, `"\U0041"`, "\"a\nb\"", "\"\t\"", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[1,]`,
		`[,1]`, `[1 2]`,
		`{"a":1 "b":2}`, `{a:1}`, `{'a':1}`, `{1:2}`, `}`, `]`, `[}`, `{]`, `tru`, `nul`, `True`, `NaN`, `Infinity`, `-`, `+1`, `01`, `-01`,
		`00`, `1.`, `.5`, `1e`, `1e+`, `1.e1`, `0x10`, `1_000`,
		"/* c */ {}", "{} // c", "\v{}", "\u00a0{}", "\u2028{}", nest(65), strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 100000),
		`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `[{"x":{"b":1,"c":2,"b":3}}]`, `{"é":1,"\u00e9":2}`, `{"😀":1,"\ud83d\ude00":2}`,
		`{"":1,"":2}`,
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":10,"k":11,"l":12,"m":13,"n":14,"o":15,"p":16,"q":17,"a":18}`,
		`"\ud800"`, `"\udc00"`, `"\udc00\ud800"`, `"\ud800\ud800\udc00"`, `"\ud800\n"`, `{"\uDFFF":1}`, `"\ud800\u0041"`,
	} {
		fault := Check([]byte(doc))
		if fault == nil || fault.Code != "malformed_json" {
			t.Errorf("%.40q: %v, want malformed_json", doc, fault)
		} else if len(fault.Message) > 400 {
			t.Errorf("%.40q: a message of %d bytes", doc, len(fault.Message))
		}
	}
}

// Two names that differ only in a lone surrogate are different names.
func TestLoneSurrogatesAreNotFolded(t *testing.T) {
	if names := scanNames(t, `{"\ud800":1,"\ud801":2}`); bytes.Equal(names[0], names[1]) {
		t.Errorf("both names became %x", names[0])
	}
}

func scanNames(t *testing.T, object string) (names [][]byte) {
	EachMember([]byte(object), func(name, _ []byte) { names = append(names, name) })
	if len(names) != 2 {
		t.Fatalf("%s: %d members", object, len(names))
	}
	return names
}

func TestUnescape(t *testing.T) {
	for raw, want := range map[string]struct {
		chars string
		lone  bool
	}{
		`\b\f\n\r\t\"\\\/`:    {"\b\f\n\r\t\"\\/", false},
		`a\u00e9\u20AC\u0000`: {"aé€\x00", false},
		`\ud83d\ude00x`:       {"😀x", false},
		`\udbff\udfff`:        {"\U0010ffff", false},
		`\ud800`:              {"\xed\xa0\x80", true},
		`\udc00\udc00`:        {"\xed\xb0\x80\xed\xb0\x80", true},
		`\ud800\ue000`:        {"\xed\xa0\x80\ue000", true},
		`\ud800\ud83d\ude00`:  {"\xed\xa0\x80😀", true},
		`\ud800\n`:            {"\xed\xa0\x80\n", true},
		`\udfff`:              {"\xed\xbf\xbf", true},
	} {
		if got, lone := Unescape([]byte(raw)); string(got) != want.chars || lone != want.lone {
			t.Errorf("%s: %q, lone: %v, want %q", raw, got, lone, want.chars)
		}
	}
}

// TestManyMembers: the members of an object and of those around it are bounded before their names are stored, and compared up to the bound.
func TestManyMembers(t *testing.T) {
	members := func(from, n int, last string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"%d":0,`, from+i)
		}
		return b.String() + last
	}
	for name, c := range map[string]struct {
		doc  string
		want string // of the message; "": accepted
	}{
		"at the bound":        {`{` + members(0, 999, `"x":0}`), ""},
		"a duplicate":         {`{` + members(0, 999, `"77":0}`), `"77" appears twice`},
		"above":               {`{` + members(0, 1000, `"x":0}`), "byte 7895: more than 1000 members"},
		"only duplicates":     {`{` + strings.Repeat(`"a":0,`, 1000) + `"a":0}`, "more than 1000 members"},
		"nested":              {`{` + members(0, 499, `"x":{`) + members(0, 499, `"y":{"z":0}}}`), "more than 1000 members"},
		"nested at the bound": {`{` + members(0, 499, `"x":{`) + members(0, 499, `"y":0}}`), ""},
		"deep": {strings.Repeat(`{"a":`, 60) + `{` + members(0, 200_000, `"x":[{"b":[],"c":{}}]}`) + strings.Repeat("}",
			60), "more than 1000 members"},
		"deep, malformed":       {`[{` + members(0, 1000, `"x":{"y":1 "z":2}}]`), "',' or '}' is expected"},
		"one after the other":   {`[{` + members(0, 999, `"x":0},{`) + members(0, 999, `"x":0}]`), ""},
		"one before the others": {`[{` + members(0, 1000, `"x":0},{"a":0,"a":0}]`), `"a" appears twice`},
	} {
		fault := Check([]byte(c.doc))
		if fault == nil != (c.want == "") || fault != nil && !strings.Contains(fault.Message, c.want) {
			t.Errorf("%s: %v, want %q", name, fault, c.want)
		}
		if canonical, other := Canonical([]byte(c.doc)); (other == nil) != (fault == nil) || other == nil && len(canonical) != len(c.doc) {
			t.Errorf("%s: canonical: %v, checked: %v", name, other, fault)
		}
	}
}

// loneCandidate finds escapes of surrogates, in a pair or alone.
var loneCandidate = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// referenceStrict implements Check with the tokens of encoding/json. It cannot
// detect lone surrogates, so it does not decide bodies that may contain some.
func referenceStrict(doc []byte) (strict, decided bool) {
	if !utf8.Valid(doc) || !json.Valid(doc) {
		return false, true
	}
	if loneCandidate.Match(doc) {
		return false, false
	}
	type frame struct {
		names map[string]bool // nil in an array
		atKey bool
	}
	var open []frame
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return true, true
		}
		if err != nil {
			return false, true
		}
		var top *frame
		if len(open) > 0 {
			top = &open[len(open)-1]
		}
		delim, _ := token.(json.Delim)
		if delim == '}' || delim == ']' {
			open = open[:len(open)-1]
			continue
		}
		if top != nil && top.names != nil && top.atKey {
			name := token.(string)
			if top.names[name] {
				return false, true
			}
			top.names[name], top.atKey = true, false
			continue
		}
		if top != nil {
			top.atKey = true
		}
		switch delim {
		case '{':
			open = append(open, frame{names: map[string]bool{}, atKey: true})
		case '[':
			open = append(open, frame{})
		}
		if len(open) > 64 {
			return false, true
		}
	}
}
