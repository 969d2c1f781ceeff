package strictjson

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// Version is the version of the rules by which payloads are written and
// hashed. It is stored beside each hash. A changed rule needs a new version, or a
// retry across an upgrade would become a conflict.
const Version = 1

// Canonical writes one JSON document in the form of RFC 8785 (JSON
// Canonicalization Scheme): no white space, members in the order of their names'
// UTF-16 code units, strings with the fewest escapes, numbers as ECMAScript
// writes them.
//
// RFC 8785 reads numbers as IEEE 754 doubles and so may change them. Canonical
// requires that the output has the same decimal value as the literal. 1.0 becomes 1
// and 1e2 becomes 100; 9007199254740993 and 0.10000000000000000001 are refused with
// number_not_exact. Documents that Check refuses are refused, too.
func Canonical(doc []byte) ([]byte, *Fault) {
	in, fault := Open(doc)
	if fault != nil {
		return nil, fault
	}
	c := Canonicalizer{in: in, levels: maxDepth, most: math.MaxInt, out: make([]byte, 0, len(doc))}
	if !c.value(1) || !c.in.End() || c.in.crowded > 0 && !c.in.failCrowded() {
		return nil, c.refusal()
	}
	return c.out, nil
}

// Canonicalizer appends the canonical form of one value to out. Its bounds are
// fields, because those of metadata are narrower than those of a document.
type Canonicalizer struct {
	in      Scanner
	out     []byte
	levels  int  // how deep objects and arrays may nest
	most    int  // the bytes that out may have
	noNUL   bool // whether U+0000 is refused
	inexact bool // the fault is a number
	fault   string
	fields  []field // the members written so far of the objects that are open
	scratch []byte
}

// Append appends the canonical form of a value that was checked before, of at most so many levels and
// bytes. why is not empty if the value cannot be stored: a number would change, U+0000, a lone
// surrogate, too many levels, or TooLong. A Canonicalizer may be used again, which saves memory.
func (c *Canonicalizer) Append(dst, value []byte, levels, most int) (out []byte, why string) {
	c.in.Reset(value)
	c.out, c.levels, c.most, c.noNUL, c.inexact, c.fault = dst, levels, len(dst)+most, true, false, ""
	if c.fields = c.fields[:0]; !c.value(1) || !c.short() {
		return nil, c.fault
	}
	return c.out, ""
}

// TooLong is the fault of a value whose canonical form has more bytes than it may have.
const TooLong = "it is too long"

// field is the range of one member in out, including the comma after it.
type field struct {
	name       []byte
	start, end int
}

func (c *Canonicalizer) fail(why string) bool {
	if c.fault == "" {
		c.fault = why
	}
	return false
}

// refusal returns the Canonicalizer's fault as an error about a document.
func (c *Canonicalizer) refusal() *Fault {
	switch {
	case c.in.Fault != nil:
		return c.in.Fault
	case c.inexact:
		return &Fault{Code: "number_not_exact", Message: c.fault}
	}
	return &Fault{Code: "malformed_json", Message: c.fault}
}

func (c *Canonicalizer) value(level int) bool {
	switch b := c.in.Peek(); {
	case b == '{':
		return c.nested(level) && c.object(level)
	case b == '[':
		return c.nested(level) && c.array(level)
	case b == '"':
		return c.text()
	case b == '-' || b-'0' <= 9:
		return c.number()
	}
	start := c.in.pos
	if !c.in.Value() {
		return false
	}
	c.out = append(c.out, c.in.src[start:c.in.pos]...)
	return true
}

// short reports whether out has not more bytes than it may have.
func (c *Canonicalizer) short() bool { return len(c.out) <= c.most || c.fail(TooLong) }

func (c *Canonicalizer) nested(level int) bool {
	if level > c.levels {
		return c.fail("more than " + strconv.Itoa(c.levels) + " levels of objects and arrays")
	}
	return true
}

func (c *Canonicalizer) object(level int) bool {
	base, ok := c.in.Enter()
	if !ok {
		return false
	}
	c.out = append(c.out, '{')
	first, sorted := len(c.fields), true
	for {
		name, more := c.in.Member(base)
		if !more {
			break
		}
		if !c.fits(name) {
			return false
		}
		if n := len(c.fields); n > first {
			sorted = sorted && compareUTF16(c.fields[n-1].name, name) < 0
		}
		start := len(c.out)
		c.out = append(AppendString(c.out, name), ':')
		if !c.value(level+1) || !c.short() {
			return false
		}
		c.out = append(c.out, ',')
		c.fields = append(c.fields, field{name, start, len(c.out)})
	}
	if !sorted {
		c.sort(c.fields[first:])
	}
	c.fields = c.fields[:first]
	c.close('}')
	return c.in.Fault == nil
}

// sort orders members that are adjacent in out.
func (c *Canonicalizer) sort(fields []field) {
	start := fields[0].start
	c.scratch = append(c.scratch[:0], c.out[start:]...)
	slices.SortFunc(fields, func(a, b field) int { return compareUTF16(a.name, b.name) })
	c.out = c.out[:start]
	for _, f := range fields {
		c.out = append(c.out, c.scratch[f.start-start:f.end-start]...)
	}
}

// close ends an object or array, whose last member left a comma.
func (c *Canonicalizer) close(bracket byte) {
	if last := len(c.out) - 1; c.out[last] == ',' {
		c.out[last] = bracket
		return
	}
	c.out = append(c.out, bracket)
}

func (c *Canonicalizer) array(level int) bool {
	if _, ok := c.in.Enter(); !ok {
		return false
	}
	c.out = append(c.out, '[')
	for i := 0; c.in.Element(i); i++ {
		if !c.value(level+1) || !c.short() {
			return false
		}
		c.out = append(c.out, ',')
	}
	c.close(']')
	return c.in.Fault == nil
}

func (c *Canonicalizer) text() bool {
	raw, escaped, ok := c.in.text()
	if !ok {
		return false
	}
	if !escaped {
		if len(raw) > c.most {
			return c.fail(TooLong)
		}
		c.out = append(c.out, '"')
		c.out = append(c.out, raw...)
		c.out = append(c.out, '"')
		return true
	}
	text, _ := Unescape(raw)
	if !c.fits(text) {
		return false
	}
	c.out = AppendString(c.out, text)
	return true
}

// fits reports whether a name or string that was just passed may be written.
func (c *Canonicalizer) fits(text []byte) bool {
	if c.in.lone {
		return c.fail("an escape names half of a surrogate pair")
	}
	if c.noNUL && bytes.IndexByte(text, 0) >= 0 {
		return c.fail(`\u0000 cannot be stored`)
	}
	return len(text) <= c.most || c.fail(TooLong)
}

func (c *Canonicalizer) number() bool {
	start := c.in.pos
	if !c.in.number() {
		return false
	}
	literal := c.in.src[start:c.in.pos]
	var ok bool
	if c.out, ok = appendNumber(c.out, literal); !ok {
		c.inexact = true
		return c.fail("the number " + string(Clip(literal)) + " does not survive as an IEEE 754 double; send it as a string")
	}
	return true
}

// compareUTF16 orders UTF-8 texts by UTF-16 code units, as RFC 8785, section 3.2.3,
// orders names. This differs from the order of the bytes only if a character above
// U+FFFF, in UTF-16 a surrogate pair, is compared with one from U+E000 to U+FFFF.
func compareUTF16(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			x, y = y, x
		}
		if x < y {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// safeDigits is the number of digits up to which every integer is exact as a double.
const safeDigits = 15

// appendNumber writes a number as ECMAScript's Number::toString does, as RFC 8785,
// section 3.2.2.3, requires; false if its value would change.
func appendNumber(dst, literal []byte) ([]byte, bool) {
	if isSmallInteger(literal) {
		return append(dst, literal...), true
	}
	f, err := strconv.ParseFloat(string(literal), 64)
	if err != nil {
		return dst, false
	}
	start := len(dst)
	dst = appendDouble(dst, f)
	if !sameDecimal(literal, dst[start:]) {
		return dst[:start], false
	}
	return dst, true
}

func isSmallInteger(literal []byte) bool {
	digits := bytes.TrimPrefix(literal, []byte("-"))
	if len(digits) > safeDigits || len(digits) < len(literal) && digits[0] == '0' {
		return false
	}
	for _, d := range digits {
		if d-'0' > 9 {
			return false
		}
	}
	return true
}

func appendDouble(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0') // also for -0
	}
	if abs := max(f, -f); 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); dst[n-4] == 'e' && dst[n-2] == '0' { // Go writes e-07, ECMAScript e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// decimal is the value ±0.digits × 10^exp; digits has no zero at either end, so
// that equal values are equal fields.
type decimal struct {
	negative bool
	digits   []byte
	exp      int
}

func sameDecimal(a, b []byte) bool {
	x, y := decimalOf(a), decimalOf(b)
	return x.negative == y.negative && x.exp == y.exp && bytes.Equal(x.digits, y.digits)
}

// hugeExponent exceeds the exponent of every double by more than the digits of a
// body, so a larger one makes no difference.
const hugeExponent = 1 << 30

func decimalOf(number []byte) decimal {
	mantissa, exponent := number, 0
	if e := bytes.IndexAny(number, "eE"); e >= 0 {
		mantissa = number[:e]
		exponent, _ = strconv.Atoi(string(number[e+1:])) // saturates when out of range
		exponent = max(-hugeExponent, min(exponent, hugeExponent))
	}
	mantissa, negative := bytes.CutPrefix(mantissa, []byte("-"))
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	digits := append(bytes.Clone(whole), fraction...)
	significant := bytes.TrimLeft(digits, "0")
	exponent += len(whole) - (len(digits) - len(significant))
	significant = bytes.TrimRight(significant, "0")
	if len(significant) == 0 {
		return decimal{}
	}
	return decimal{negative, significant, exponent}
}
