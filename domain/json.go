package domain

import (
	"bytes"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays. Valid input of the API is at
// most 8 levels deep; the bound limits the recursion here and in every reader of a
// stored payload.
const maxDepth = 64

// fewMembers is the number of names up to which comparing all pairs is faster than
// sorting.
const fewMembers = 16

// StrictJSON checks that body is exactly one JSON document (RFC 8259) with the same
// meaning for every reader: valid UTF-8 without a byte order mark, no object with a
// duplicate member (names are compared after unescaping), no trailing data, at most
// 64 levels, no lone surrogates. The code of a refusal is malformed_json.
func StrictJSON(body []byte) *Error {
	in, fault := openDocument(body)
	if fault != nil {
		return fault
	}
	if in.value() && in.end() && in.lone {
		in.fail("an escape names half of a surrogate pair")
	}
	return in.fault
}

// scanner reads one JSON document from start to end and stores only its position. It
// refuses violations of RFC 8259, duplicate members and too deep nesting. It only
// records lone surrogates: the caller decides whether one makes the whole body
// invalid or only its member.
//
// The first fault stops it: every method then returns false, and fault is the reason.
type scanner struct {
	src   []byte
	pos   int
	depth int
	lone  bool
	names [][]byte // unescaped member names of the objects that are open
	fault *Error
}

// openDocument makes the checks that concern the bytes as a whole.
func openDocument(body []byte) (scanner, *Error) {
	in := scanner{src: body}
	switch {
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		in.fail("the body starts with a byte order mark; send UTF-8 without one")
	case !utf8.Valid(body):
		in.fail("the body is not valid UTF-8")
	case in.peek() == 0 && in.pos == len(body):
		in.fail("the body is empty; send a JSON document")
	}
	return in, in.fault
}

func (s *scanner) fail(why string) bool {
	if s.fault == nil {
		s.fault = &Error{Code: "malformed_json", Message: "not the JSON that is taken here, at byte " + strconv.Itoa(s.pos) + ": " + why}
	}
	return false
}

// peek skips white space and returns the next byte, 0 at the end. A NUL in the body
// starts no token, so the caller need not distinguish the two.
func (s *scanner) peek() byte {
	for s.pos < len(s.src) {
		c := s.src[s.pos]
		if c > ' ' || (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
			return c
		}
		s.pos++
	}
	return 0
}

// end reports whether only white space follows.
func (s *scanner) end() bool {
	s.peek()
	if s.pos < len(s.src) {
		return s.fail("data after the end of the document; send one document only")
	}
	return true
}

// value skips one value of any kind.
func (s *scanner) value() bool {
	c := s.peek()
	switch {
	case c == '"':
		_, _, ok := s.text()
		return ok
	case c == '-' || c-'0' <= 9:
		return s.number()
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.fail("a value is expected here")
}

func (s *scanner) literal(word string) bool {
	if !bytes.HasPrefix(s.src[s.pos:], []byte(word)) {
		return s.fail("a value is expected here")
	}
	s.pos += len(word)
	return true
}

func (s *scanner) object() bool {
	base, ok := s.enter()
	for ok {
		if _, more := s.member(base); !more {
			break
		}
		ok = s.value()
	}
	return s.fault == nil
}

func (s *scanner) array() bool {
	if _, ok := s.enter(); !ok {
		return false
	}
	for i := 0; s.element(i); i++ {
		if !s.value() {
			return false
		}
	}
	return s.fault == nil
}

// enter skips the opening bracket that peek has returned. The returned base belongs
// to the object; the caller passes it to member.
func (s *scanner) enter() (base int, ok bool) {
	if s.depth == maxDepth {
		return 0, s.fail("more than 64 levels of objects and arrays")
	}
	s.depth++
	s.pos++
	return len(s.names), true
}

// member advances to the next member of an entered object and returns its unescaped
// name. The position is then at the value, which the caller must skip before the next
// call. member returns false on a fault, and at the closing brace, which it skips.
func (s *scanner) member(base int) ([]byte, bool) {
	c := s.peek()
	if c == '}' {
		return nil, s.leave(base)
	}
	if len(s.names) > base {
		if c != ',' {
			return nil, s.fail("',' or '}' is expected here")
		}
		s.pos++
		c = s.peek()
	}
	if c != '"' {
		return nil, s.fail("a member name in double quotes is expected here")
	}
	name, escaped, ok := s.text()
	if !ok {
		return nil, false
	}
	if escaped {
		name, _ = unescape(name)
	}
	if s.peek() != ':' {
		return nil, s.fail("':' is expected here")
	}
	s.pos++
	s.peek()
	s.names = append(s.names, name)
	return name, true
}

// leave closes an object; it returns false for the result of member.
func (s *scanner) leave(base int) bool {
	s.pos++
	s.depth--
	if name, twice := duplicate(s.names[base:]); twice {
		return s.fail("the member " + quote(name) + " appears twice in one object")
	}
	s.names = s.names[:base]
	return false
}

// duplicate finds a name that occurs twice; it may reorder names.
func duplicate(names [][]byte) ([]byte, bool) {
	if len(names) > fewMembers {
		slices.SortFunc(names, bytes.Compare)
		for i := 1; i < len(names); i++ {
			if bytes.Equal(names[i-1], names[i]) {
				return names[i], true
			}
		}
		return nil, false
	}
	for i := 1; i < len(names); i++ {
		for j := range i {
			if string(names[i]) == string(names[j]) {
				return names[i], true
			}
		}
	}
	return nil, false
}

// element advances to element i of an entered array, as member does in an object.
func (s *scanner) element(i int) bool {
	c := s.peek()
	if c == ']' {
		s.pos++
		s.depth--
		return false
	}
	if i > 0 {
		if c != ',' {
			return s.fail("',' or ']' is expected here")
		}
		s.pos++
		s.peek()
	}
	return true
}

// text skips a string and returns the raw characters between the quotes.
func (s *scanner) text() (raw []byte, escaped, ok bool) {
	src, start := s.src, s.pos+1
	for i := start; i < len(src); i++ {
		c := src[i]
		if c == '"' {
			s.pos = i + 1
			return src[start:i], escaped, true
		}
		if c == '\\' {
			n := s.escape(src[i:])
			if n == 0 {
				s.pos = i
				return nil, false, s.fail("an escape that JSON does not know")
			}
			i += n - 1
			escaped = true
		} else if c < ' ' {
			s.pos = i
			return nil, false, s.fail("a control character in a string; escape it")
		}
	}
	s.pos = len(src)
	return nil, false, s.fail("a string that does not end")
}

// number skips a number of RFC 8259's grammar, of any size.
func (s *scanner) number() bool {
	if s.src[s.pos] == '-' {
		s.pos++
	}
	leadingZero := s.pos < len(s.src) && s.src[s.pos] == '0'
	n := s.digits()
	if n == 0 || leadingZero && n > 1 {
		return s.fail("a number starts with a digit, and with 0 only where no digit follows")
	}
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			return s.fail("a digit is expected after the decimal point")
		}
	}
	if s.pos < len(s.src) && s.src[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		if s.digits() == 0 {
			return s.fail("a digit is expected in the exponent")
		}
	}
	return true
}

func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}
