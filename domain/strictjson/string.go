package strictjson

import "unicode/utf8"

// escape returns the length of the escape at the start of b, 0 if b starts with no escape; a
// surrogate pair is one escape.
func (s *Scanner) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		r, ok := hex4(b)
		if !ok {
			return 0
		}
		if r < surrogateMin || r > surrogateMax {
			return 6
		}
		if r < surrogateLow {
			if low, ok := hex4(b[6:]); ok && low >= surrogateLow && low <= surrogateMax {
				return 12
			}
		}
		s.lone = true
		return 6
	}
	return 0
}

const (
	surrogateMin = 0xD800 // first high surrogate
	surrogateLow = 0xDC00 // first low surrogate
	surrogateMax = 0xDFFF // last low surrogate
)

// hex4 reads the \uXXXX at the start of b.
func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case (c|0x20)-'a' <= 5:
			c = (c | 0x20) - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// Unescape returns the characters of a string between its quotes. A lone surrogate
// is encoded in three bytes like a character. That is not valid UTF-8 and must not
// leave this package, but different names stay different.
func Unescape(raw []byte) (out []byte, lone bool) {
	out = make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		if raw[i+1] != 'u' {
			out = append(out, unescaped(raw[i+1]))
			i += 2
			continue
		}
		r, _ := hex4(raw[i:])
		i += 6
		if r >= surrogateMin && r <= surrogateMax {
			low, ok := hex4(raw[i:])
			if r >= surrogateLow || !ok || low < surrogateLow || low > surrogateMax {
				out = append(out, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
				lone = true
				continue
			}
			r = 0x10000 + (r-surrogateMin)<<10 + (low - surrogateLow)
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return out, lone
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// AppendString writes text by RFC 8785, section 3.2.2.2: the two-letter escapes if
// JSON has one, \u00xx in lower case for the other control characters, and all other
// characters unchanged.
func AppendString[Text ~string | ~[]byte](dst []byte, text Text) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}
