// Package strictjson reads JSON that has one meaning for every reader (RFC 8259 without
// duplicate names, lone surrogates and deep nesting), and writes its canonical form (RFC 8785).
package strictjson

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays. Valid input of the API is at
// most 8 levels deep; the bound limits the recursion here and in every reader of a
// stored payload.
const maxDepth = 64

// maxMembers bounds the members of an object together with those of the objects around it, whose names are stored at the same time. Valid
// input has at most 700: metadata of 4 KiB.
const maxMembers = 1000

// fewMembers is the number of names up to which comparing all pairs is faster than
// hashing.
const fewMembers = 16

// Fault is the first violation in a document.
type Fault struct {
	Code    string // malformed_json, or of Canonical: number_not_exact
	Message string // for people: the place of the fault and the correction
}

func (f *Fault) Error() string { return f.Code + ": " + f.Message }

// Check checks that doc is exactly one JSON document (RFC 8259) with the same meaning for
// every reader: valid UTF-8 without a byte order mark, no object with a duplicate member
// (names are compared after unescaping), no trailing data, at most 64 levels, at most
// 1000 members in an object and those around it, no lone surrogates.
func Check(doc []byte) *Fault {
	in, fault := Open(doc)
	if fault != nil {
		return fault
	}
	switch {
	case !in.Value() || !in.End():
	case in.lone:
		in.Fail("an escape names half of a surrogate pair")
	case in.crowded > 0:
		in.failCrowded()
	}
	return in.Fault
}

// Scanner reads one JSON document from start to end and stores only its position. It
// refuses violations of RFC 8259, duplicate members and too deep nesting. It only
// records lone surrogates, and objects below the body's own with too many members: the
// caller decides whether one makes the whole body invalid or only its member.
//
// The first fault stops it: every method then returns false, and Fault is the reason.
type Scanner struct {
	src     []byte
	pos     int
	depth   int
	lone    bool
	checked bool     // by an earlier scan
	crowded int      // the last position at which an object had too many members; its names are not compared
	names   [][]byte // unescaped member names of the objects that are open; the last one of each if checked
	hashed  hashed   // of an object with more than fewMembers names
	Fault   *Fault
}

// Over returns a scanner of a document that was checked before: it stores no names, and finds no duplicate ones.
func Over(doc []byte) Scanner { return Scanner{src: doc, checked: true} }

// Reset makes a scanner read another document that was checked before. It saves memory.
func (s *Scanner) Reset(doc []byte) {
	s.src, s.pos, s.depth, s.lone, s.checked, s.crowded, s.names, s.Fault = doc, 0, 0, false, true, 0, s.names[:0], nil
}

// Open returns a scanner after the checks that concern the bytes as a whole.
func Open(body []byte) (Scanner, *Fault) {
	in := Scanner{src: body}
	switch {
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		in.Fail("the body starts with a byte order mark; send UTF-8 without one")
	case !utf8.Valid(body):
		in.Fail("the body is not valid UTF-8")
	case in.Peek() == 0 && in.pos == len(body):
		in.Fail("the body is empty; send a JSON document")
	}
	return in, in.Fault
}

// Fail stops the scanner at its position, unless a fault stopped it before. It returns false.
func (s *Scanner) Fail(why string) bool {
	if s.Fault == nil {
		s.Fault = &Fault{Code: "malformed_json", Message: "Malformed JSON at byte " + strconv.Itoa(s.pos) + ": " + why}
	}
	return false
}

// Pos returns the number of bytes that are read.
func (s *Scanner) Pos() int { return s.pos }

// CrowdedSince reports whether an object from a position on had too many members: its names were not compared, so the
// caller must refuse it.
func (s *Scanner) CrowdedSince(pos int) bool { return s.crowded > pos }

// TooManyMembers is the fault of such an object.
const TooManyMembers = "more than 1000 members in one object and those around it"

// failCrowded stops the scanner at the object with too many members.
func (s *Scanner) failCrowded() bool {
	s.pos = s.crowded
	return s.Fail(TooManyMembers)
}

// Left returns the number of bytes that are not read.
func (s *Scanner) Left() int { return len(s.src) - s.pos }

// Since returns the bytes from a position to the present one.
func (s *Scanner) Since(pos int) []byte { return s.src[pos:s.pos] }

// Peek skips white space and returns the next byte, 0 at the end. A NUL in the body
// starts no token, so the caller need not distinguish the two.
func (s *Scanner) Peek() byte {
	for s.pos < len(s.src) {
		c := s.src[s.pos]
		if c > ' ' || (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
			return c
		}
		s.pos++
	}
	return 0
}

// End reports whether only white space follows.
func (s *Scanner) End() bool {
	s.Peek()
	if s.pos < len(s.src) {
		return s.Fail("data after the end of the document; send one document only")
	}
	return true
}

// Value skips one value of any kind.
func (s *Scanner) Value() bool {
	c := s.Peek()
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
	return s.Fail("a value is expected here")
}

func (s *Scanner) literal(word string) bool {
	if !bytes.HasPrefix(s.src[s.pos:], []byte(word)) {
		return s.Fail("a value is expected here")
	}
	s.pos += len(word)
	return true
}

func (s *Scanner) object() bool {
	base, ok := s.Enter()
	for ok {
		if _, more := s.Member(base); !more {
			break
		}
		ok = s.Value()
	}
	return s.Fault == nil
}

func (s *Scanner) array() bool {
	if _, ok := s.Enter(); !ok {
		return false
	}
	for i := 0; s.Element(i); i++ {
		if !s.Value() {
			return false
		}
	}
	return s.Fault == nil
}

// Enter skips the opening bracket that Peek has returned. The returned base belongs
// to the object; the caller passes it to Member.
func (s *Scanner) Enter() (base int, ok bool) {
	if s.depth == maxDepth {
		return 0, s.Fail("more than 64 levels of objects and arrays")
	}
	s.depth++
	s.pos++
	return len(s.names), true
}

// Member advances to the next member of an entered object and returns its unescaped
// name. The position is then at the value, which the caller must skip before the next
// call. Member returns false on a fault, and at the closing brace, which it skips.
func (s *Scanner) Member(base int) ([]byte, bool) {
	c := s.Peek()
	if c == '}' {
		return nil, s.closeObject(base)
	}
	if len(s.names) > base {
		if c != ',' {
			return nil, s.Fail("',' or '}' is expected here")
		}
		s.pos++
		c = s.Peek()
	}
	if c != '"' {
		return nil, s.Fail("a member name in double quotes is expected here")
	}
	name, escaped, ok := s.text()
	if !ok {
		return nil, false
	}
	if escaped {
		name, _ = Unescape(name)
	}
	if s.Peek() != ':' {
		return nil, s.Fail("':' is expected here")
	}
	s.pos++
	s.Peek()
	if s.checked {
		s.names = s.names[:base]
	} else if len(s.names) >= maxMembers && !s.crowd(base) {
		return nil, false
	}
	s.names = append(s.names, name)
	return name, true
}

// crowd forgets the names of an object with too many members; the body's own is refused at once.
func (s *Scanner) crowd(base int) bool {
	s.crowded, s.names = s.pos, s.names[:base]
	return s.depth > 1 || s.failCrowded()
}

// closeObject closes an object; it returns false for the result of Member.
func (s *Scanner) closeObject(base int) bool {
	s.pos++
	s.depth--
	if name, twice := s.hashed.duplicate(s.names[base:]); twice {
		return s.Fail("the member " + Quote(name) + " appears twice in one object")
	}
	s.names = s.names[:base]
	return false
}

// hashed is a hash table of names. Its seed is random: no client can choose names that collide.
type hashed struct {
	seed  maphash.Seed
	table []uint16 // 1 + the index of a name, at its hash or after it; 0: free
}

// duplicate finds the first name that occurs twice.
func (h *hashed) duplicate(names [][]byte) ([]byte, bool) {
	if len(names) > fewMembers {
		return h.find(names)
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

func (h *hashed) find(names [][]byte) ([]byte, bool) {
	size := 1 << bits.Len(uint(2*len(names)))
	if len(h.table) < size {
		h.seed, h.table = maphash.MakeSeed(), make([]uint16, size)
	}
	table := h.table[:size]
	clear(table)
	for i, name := range names {
		at := maphash.Bytes(h.seed, name) % uint64(size)
		for ; table[at] > 0; at = (at + 1) % uint64(size) {
			if bytes.Equal(names[table[at]-1], name) {
				return name, true
			}
		}
		table[at] = uint16(i + 1)
	}
	return nil, false
}

// Element advances to element i of an entered array, as Member does in an object.
func (s *Scanner) Element(i int) bool {
	c := s.Peek()
	if c == ']' {
		s.pos++
		s.depth--
		return false
	}
	if i > 0 {
		if c != ',' {
			return s.Fail("',' or ']' is expected here")
		}
		s.pos++
		s.Peek()
	}
	return true
}

// text skips a string and returns the raw characters between the quotes.
func (s *Scanner) text() (raw []byte, escaped, ok bool) {
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
				return nil, false, s.Fail("an escape that JSON does not know")
			}
			i += n - 1
			escaped = true
		} else if c < ' ' {
			s.pos = i
			return nil, false, s.Fail("a control character in a string; escape it")
		}
	}
	s.pos = len(src)
	return nil, false, s.Fail("a string that does not end")
}

// number skips a number of RFC 8259's grammar, of any size.
func (s *Scanner) number() bool {
	if s.src[s.pos] == '-' {
		s.pos++
	}
	leadingZero := s.pos < len(s.src) && s.src[s.pos] == '0'
	n := s.digits()
	if n == 0 || leadingZero && n > 1 {
		return s.Fail("a number starts with a digit, and with 0 only where no digit follows")
	}
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			return s.Fail("a digit is expected after the decimal point")
		}
	}
	if s.pos < len(s.src) && s.src[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		if s.digits() == 0 {
			return s.Fail("a digit is expected in the exponent")
		}
	}
	return true
}

func (s *Scanner) digits() int {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}

// EachMember visits the members of an object that was checked before, with their raw values.
func EachMember(object []byte, visit func(name, raw []byte)) {
	in := Over(object)
	in.Peek()
	base, _ := in.Enter()
	for {
		name, more := in.Member(base)
		if !more {
			return
		}
		start := in.pos
		if !in.Value() {
			return
		}
		visit(name, in.Since(start))
	}
}
