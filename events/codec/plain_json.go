package codec

// maxPlain is how deep values may nest; metadata may nest less.
const maxPlain = 32

// plainValue returns the end of the value that begins at i, in the form that this service writes,
// without blanks. It may refuse valid JSON, but never accepts invalid JSON.
func plainValue(b []byte, i, depth int) (int, bool) {
	if i >= len(b) || depth > maxPlain {
		return i, false
	}
	switch c := b[i]; {
	case c == '"':
		return plainText(b, i+1)
	case c == '{' || c == '[':
		return plainNested(b, i, depth)
	case c == '-' || c >= '0' && c <= '9':
		return plainNumber(b, i)
	}
	for _, word := range [...]string{"null", "true", "false"} {
		if len(b)-i >= len(word) && string(b[i:i+len(word)]) == word {
			return i + len(word), true
		}
	}
	return i, false
}

func plainNested(b []byte, i, depth int) (_ int, ok bool) {
	object := b[i] == '{'
	if i++; i < len(b) && b[i] == b[i-1]+2 { // } and ] are two code points after { and [
		return i + 1, true
	}
	for {
		if object {
			if i >= len(b) || b[i] != '"' {
				return i, false
			}
			if i, ok = plainText(b, i+1); !ok || i >= len(b) || b[i] != ':' {
				return i, false
			}
			i++
		}
		if i, ok = plainValue(b, i, depth+1); !ok || i >= len(b) {
			return i, false
		}
		switch {
		case b[i] == ',':
			i++
		case object && b[i] == '}', !object && b[i] == ']':
			return i + 1, true
		default:
			return i, false
		}
	}
}

// plainText reads a string whose opening quote is before i, and returns its end.
func plainText(b []byte, i int) (int, bool) {
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, true
		case c < 0x20:
			return i, false
		case c == '\\':
			if i++; i >= len(b) {
				return i, false
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					if i++; i >= len(b) || !isHex(b[i]) {
						return i, false
					}
				}
			default:
				return i, false
			}
		}
	}
	return i, false
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func plainNumber(b []byte, i int) (int, bool) {
	if b[i] == '-' {
		i++
	}
	first := i
	if i = digits(b, i); i == first || b[first] == '0' && i > first+1 {
		return i, false
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = digits(b, from); i == from {
			return i, false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = digits(b, from); i == from {
			return i, false
		}
	}
	return i, true
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}
