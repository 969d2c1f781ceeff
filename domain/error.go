// Package domain decides: it turns what a producer sent into facts or into a
// refusal, and folds facts into state. It is pure. It may not know a context, a
// clock, a database, a network or a random source: time and ids come in as
// arguments, so that the same input gives the same answer for ever, on every
// instance, also in a replay years later.
package domain

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is a refusal: the caller sent something that cannot be taken. It is
// never used for a fault of ours.
type Error struct {
	// Code is stable and snake_case; clients branch on it.
	Code string
	// Message is for a human and says what to do. It echoes at most maxEcho
	// characters of input, quoted.
	Message string
	// Pointer is the JSON pointer (RFC 6901) of the member at fault within the
	// body, or "" where there is none.
	Pointer string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// maxEcho bounds how much of the input an error repeats: enough to find the
// place, too little to make an answer large or a log line a channel.
const maxEcho = 64

// quote renders input for a message: printable, on one line, cut to maxEcho
// characters.
func quote(b []byte) string {
	cut := clip(b)
	q := strconv.Quote(string(cut))
	if len(cut) < len(b) {
		q += "…"
	}
	return q
}

// clip is the longest prefix of b of at most maxEcho characters.
func clip(b []byte) []byte {
	end := 0
	for n := 0; n < maxEcho && end < len(b); n++ {
		_, size := utf8.DecodeRune(b[end:])
		end += size
	}
	return b[:end]
}

// pointerTo is "/name" with the escapes of RFC 6901. A name longer than maxEcho
// is cut and ends in "…": the pointer is then a hint, no address.
func pointerTo(name []byte) string {
	cut := clip(name)
	s := strings.ToValidUTF8(string(cut), "\uFFFD")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
	if len(cut) < len(name) {
		s += "…"
	}
	return "/" + s
}

// asError avoids the non-nil interface around a nil *Error.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}
