// Package domain decides: it turns a producer's input into facts or a refusal, and
// folds facts into state. It is pure. It may not use a context, a clock, a database,
// a network or a random source. Time and ids are arguments, so the same input always
// gives the same result, on every instance, even in a replay years later.
package domain

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is a refusal of a caller's input. It never reports a fault of the service.
type Error struct {
	// Code is stable and snake_case; clients branch on it.
	Code string
	// Message tells a person how to correct the input. It echoes at most maxEcho
	// characters of input, quoted.
	Message string
	// Pointer is the JSON pointer (RFC 6901) of the member at fault in the body, or ""
	// if there is none.
	Pointer string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// maxEcho bounds the input that an error repeats: enough to find the place, too
// little to make a response large or to misuse a log line as a channel.
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

// clip returns the longest prefix of b with at most maxEcho characters.
func clip(b []byte) []byte {
	end := 0
	for n := 0; n < maxEcho && end < len(b); n++ {
		_, size := utf8.DecodeRune(b[end:])
		end += size
	}
	return b[:end]
}

// pointerTo returns "/name" with the escapes of RFC 6901. A name longer than maxEcho
// is cut and ends in "…"; the pointer is then only a hint.
func pointerTo(name []byte) string {
	cut := clip(name)
	s := strings.ToValidUTF8(string(cut), "\uFFFD")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
	if len(cut) < len(name) {
		s += "…"
	}
	return "/" + s
}

// asError converts e without making a non-nil interface from a nil *Error.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}
