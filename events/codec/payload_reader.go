package codec

import (
	"bytes"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// payloadReader reads a payload only in the exact form that this service writes: the same members
// in the same order, no blanks, strings without escapes. At any other input it gives
// up, and the general decoder decides. So it may be faster than the general decoder,
// but never returns a different result.
type payloadReader struct {
	rest []byte
	bad  bool
}

// skip reads a literal.
func (r *payloadReader) skip(text string) {
	if r.bad || len(r.rest) < len(text) || string(r.rest[:len(text)]) != text {
		r.bad = true
		return
	}
	r.rest = r.rest[len(text):]
}

// text reads the rest of a string, including the closing quote.
func (r *payloadReader) text() []byte {
	end := bytes.IndexByte(r.rest, '"')
	if r.bad || end < 0 {
		r.bad = true
		return nil
	}
	s := r.rest[:end]
	for _, c := range s {
		if c < 0x20 || c >= 0x7f || c == '\\' {
			r.bad = true
		}
	}
	r.rest = r.rest[end+1:]
	return s
}

// known reads a string that is likely to be one of texts. It does not copy these.
func (r *payloadReader) known(texts ...string) string {
	s := r.text()
	for _, text := range texts {
		if string(s) == text {
			return text
		}
	}
	return string(s)
}

// number reads digits as the server writes them, with an optional minus sign.
func (r *payloadReader) number(bits int) int64 {
	n := 0
	for n < len(r.rest) && (r.rest[n] == '-' || r.rest[n] >= '0' && r.rest[n] <= '9') {
		n++
	}
	v, err := strconv.ParseInt(string(r.rest[:n]), 10, bits)
	// Leading zeros are not JSON.
	if err != nil || n > 1 && r.rest[0] == '0' || n > 2 && r.rest[0] == '-' && r.rest[1] == '0' {
		r.bad = true
	}
	r.rest = r.rest[n:]
	return v
}

func (r *payloadReader) id() uuid.UUID {
	s := r.text()
	id, err := uuid.ParseBytes(s)
	if err != nil || len(s) != 36 {
		r.bad = true
	}
	return id
}

func (r *payloadReader) time() (t time.Time) {
	s := r.text()
	if r.bad || len(s) == 0 || s[len(s)-1] != 'Z' || t.UnmarshalText(s) != nil {
		r.bad = true
	}
	return t
}
