package strictjson

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// The table of RFC 8785, appendix B.
func TestCanonicalNumbersOfRFC8785(t *testing.T) {
	for bits, want := range map[uint64]string{
		0x0000000000000000: "0",
		0x8000000000000000: "0",
		0x0000000000000001: "5e-324",
		0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308",
		0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992",
		0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000",
		0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23",
		0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000",
		0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21",
		0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001",
		0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325",
		0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334",
		0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333",
		0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		if got := string(appendDouble(nil, math.Float64frombits(bits))); got != want {
			t.Errorf("%016x: %s, want %s", bits, got, want)
		}
		if got, fault := Canonical([]byte(want)); fault != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want it unchanged", want, got, fault)
		}
	}
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		// RFC 8785, section 3.2.2, without 333333333.33333329, whose value would change.
		{"{\n  \"numbers\": [333333333.3333333, 1E30, 4.50,\n 2e-3, 0.000000000000000000000000001],\n" +
			`  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",` + "\n  \"literals\": [null, true, false]\n}",
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		// RFC 8785, section 3.2.3.
		{
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning ` +
				`Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			`{"\r":"Carriage Return","1":"One","` + "\u0080" +
				`":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" +
				`":"Hebrew Letter Dalet With Dagesh"}`},
		{`[ ]`, `[]`}, {`{ }`, `{}`}, {`[[],{},[{}]]`, `[[],{},[{}]]`}, {` null `, `null`}, {`"a"`, `"a"`},
		{`{"b":{"z":1,"y":[{"d":1,"c":2}]},"a":0}`, `{"a":0,"b":{"y":[{"c":2,"d":1}],"z":1}}`},
		{`{"aa":1,"a":2,"":3,"aaa":4,"a\u0000":5}`, `{"":3,"a":2,"a\u0000":5,"aa":1,"aaa":4}`},
		{`"\u0000\u001F\u007f\b\f\n\r\t\u2028\u002f"`, `"\u0000\u001f` + "\x7f" + `\b\f\n\r\t` + "\u2028" + `/"`},
		{`[0,-0,0.0,-0e99,0e-999999999999999999999,0e999999999999999999999]`, `[0,0,0,0,0,0]`},
		{`[1.0,1e2,10e-1,100000000000000000000,1e20,1e21,-1.50,1E+2,0.1e1]`,
			`[1,100,1,100000000000000000000,100000000000000000000,1e+21,-1.5,100,1]`},
		{`[0.1,9007199254740991,9007199254740992,9007199254740994,-9007199254740991]`,
			`[0.1,9007199254740991,9007199254740992,9007199254740994,-9007199254740991]`},
		{`[1e100,1e-100,1e-7,1e-6,123456789012345,1234567890123456,5e-324]`,
			`[1e+100,1e-100,1e-7,0.000001,123456789012345,1234567890123456,5e-324]`},
		{`0.` + strings.Repeat("0", 500) + `1e501`, `1`}, {`1` + strings.Repeat("0", 300) + `e-300`, `1`},
	} {
		if got, fault := Canonical([]byte(c.doc)); fault != nil || string(got) != c.want {
			t.Errorf("%s\n got %s %v\nwant %s", c.doc, got, fault, c.want)
		}
	}
	for doc, code := range map[string]string{
		`9007199254740993`: "number_not_exact", `-9007199254740993`: "number_not_exact", `1e400`: "number_not_exact",
		`-1e400`: "number_not_exact",
		`1e-400`: "number_not_exact", `0.1000000000000000055511151231257827`: "number_not_exact",
		`0.10000000000000000001`: "number_not_exact",
		`333333333.33333329`:     "number_not_exact", `[1,{"a":4e-324}]`: "number_not_exact", `123456789012345678`: "number_not_exact",
		`1e999999999999999999999`: "number_not_exact", `9223372036854775807`: "number_not_exact",
		`1` + strings.Repeat("0", 400): "number_not_exact",
		`"\ud800"`:                     "malformed_json", `{"\udc00":1}`: "malformed_json", `{"a":1,"\u0061":1}`: "malformed_json",
		`{}x`:    "malformed_json",
		nest(65): "malformed_json",
		``:       "malformed_json", `[01]`: "malformed_json", `{"a":[`: "malformed_json", `nul`: "malformed_json",
	} {
		if got, fault := Canonical([]byte(doc)); fault == nil || fault.Code != code {
			t.Errorf("%.60s: %s, %v, want %s", doc, got, fault, code)
		}
	}
}

func TestNamesAreOrderedByUTF16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("aé\u0080\ud7ff\ue000\ufb33\uffff😀\U00010000\U0010ffff")), 0, 4, -1)
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := compareUTF16([]byte(a), []byte(b)); sign(got) != want {
			t.Fatalf("%q, %q: %d, want %d", a, b, got, want)
		}
	})
}

func sign(n int) int { return min(1, max(-1, n)) }

// A number is accepted if and only if its shortest double has the same value.
func TestNumbersAreKeptExactly(t *testing.T) {
	digits := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		literal := digits.Draw(t, "literal")
		exact, _ := new(big.Rat).SetString(literal)
		nearest, _ := exact.Float64()
		shortest, finite := new(big.Rat).SetString(string(appendDouble(nil, nearest)))
		survives := finite && exact.Cmp(shortest) == 0
		got, fault := Canonical([]byte(literal))
		if survives != (fault == nil) {
			t.Fatalf("%s: %s, %v, survives: %v", literal, got, fault, survives)
		}
		if !survives {
			return
		}
		if kept, _ := new(big.Rat).SetString(string(got)); kept.Cmp(exact) != 0 {
			t.Fatalf("%s became %s", literal, got)
		}
	})
}
