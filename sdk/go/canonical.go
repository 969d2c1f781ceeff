package meterplex

import (
	"bytes"
	"encoding"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// appendMetadata appends ,"metadata":{…} unless it is empty.
func appendMetadata(b []byte, metadata map[string]any) ([]byte, error) {
	if len(metadata) == 0 {
		return b, nil
	}
	b = append(b, `,"metadata":`...)
	start := len(b)
	b, err := appendValue(b, metadata, 1)
	if err == nil && len(b)-start > maxMetadata {
		return nil, invalid("metadata_too_large", "Metadata has %d bytes as canonical JSON, at most 4096 are allowed", len(b)-start)
	}
	return b, err
}

// appendValue appends a value as RFC 8785 writes it.
func appendValue(b []byte, value any, level int) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return append(b, "null"...), nil
	case json.Number:
		return appendNumber(b, v.String())
	case map[string]any:
		return appendObject(b, v, level)
	case []any:
		return appendArray(b, v, level)
	case json.Marshaler, encoding.TextMarshaler:
		return appendMarshaled(b, value, level)
	}
	switch v := reflect.ValueOf(value); {
	case v.Kind() == reflect.Bool:
		return strconv.AppendBool(b, v.Bool()), nil
	case v.Kind() == reflect.String:
		if text := v.String(); !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			return nil, invalid("metadata_invalid", "The text %.100q in Metadata is not UTF-8 or holds U+0000", text)
		}
		return appendString(b, v.String()), nil
	case v.CanInt():
		return appendNumber(b, strconv.FormatInt(v.Int(), 10))
	case v.CanUint():
		return appendNumber(b, strconv.FormatUint(v.Uint(), 10))
	case v.CanFloat():
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, invalid("metadata_invalid", "The number %v in Metadata has no form in JSON", f)
		}
		return appendDouble(b, f), nil
	}
	return appendMarshaled(b, value, level)
}

// appendMarshaled appends a value of another type as package json encodes it.
func appendMarshaled(b []byte, value any, level int) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, newError("metadata_invalid", err, "A value of type %T in Metadata has no form in JSON", value)
	}
	var plain any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&plain); err != nil {
		return nil, newError("metadata_invalid", err, "A value of type %T in Metadata has no form in JSON", value)
	}
	return appendValue(b, plain, level)
}

func checkLevel(level int) error {
	if level > maxMetadataLevel {
		return invalid("metadata_invalid", "Metadata has more than 5 levels of objects and arrays")
	}
	return nil
}

func appendArray(b []byte, array []any, level int) ([]byte, error) {
	err := checkLevel(level)
	b = append(b, '[')
	for i, v := range array {
		if err != nil {
			break
		}
		if i > 0 {
			b = append(b, ',')
		}
		b, err = appendValue(b, v, level+1)
	}
	return append(b, ']'), err
}

func appendObject(b []byte, object map[string]any, level int) ([]byte, error) {
	if err := checkLevel(level); err != nil {
		return nil, err
	}
	b = append(b, '{')
	for i, name := range slices.SortedFunc(maps.Keys(object), compareUTF16) {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendValue(b, name, level); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, ':'), object[name], level+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// compareUTF16 orders names by their UTF-16 code units (RFC 8785, section 3.2.3).
func compareUTF16(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// appendString appends a text with the fewest escapes.
func appendString(b []byte, s string) []byte {
	const short = "\b\t\n\f\r"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		case strings.IndexByte(short, c) >= 0:
			b = append(b, '\\', "btnfr"[strings.IndexByte(short, c)])
		default:
			b = append(b, '\\', 'u', '0', '0', '0'+c>>4, "0123456789abcdef"[c&15])
		}
	}
	return append(b, '"')
}

// appendNumber appends a literal as ECMAScript writes it, if a float64 holds it exactly.
func appendNumber(b []byte, literal string) ([]byte, error) {
	f, err := strconv.ParseFloat(literal, 64)
	if err == nil {
		start := len(b)
		b = appendDouble(b, f)
		if sameDecimal(literal, string(b[start:])) {
			return b, nil
		}
	}
	return nil, invalid("metadata_invalid", "The number %.100s in Metadata does not survive as a float64: use a string", literal)
}

func appendDouble(b []byte, f float64) []byte {
	if f == 0 {
		return append(b, '0') // also for -0
	}
	if abs := math.Abs(f); 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-2] == '0' { // Go writes e-07, ECMAScript e-7
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// sameDecimal reports whether two literals have the same decimal value.
func sameDecimal(a, b string) bool {
	xSign, xDigits, xExp := decimal(a)
	ySign, yDigits, yExp := decimal(b)
	return xSign == ySign && xDigits == yDigits && xExp == yExp
}

// decimal returns ±0.digits × 10^exp, without zeros at the ends of digits.
func decimal(literal string) (negative bool, digits string, exp int) {
	mantissa := literal
	if e := strings.IndexAny(literal, "eE"); e >= 0 {
		mantissa = literal[:e]
		exp, _ = strconv.Atoi(literal[e+1:]) // saturates; no float64 has such an exponent
		exp = max(-1<<30, min(exp, 1<<30))
	}
	mantissa, negative = strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = whole + fraction
	significant := strings.TrimLeft(digits, "0")
	exp += len(whole) - (len(digits) - len(significant))
	if significant = strings.TrimRight(significant, "0"); significant == "" {
		return false, "", 0
	}
	return negative, significant, exp
}
