package domain

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxReason bounds the reason of a change, in characters.
const MaxReason = 500

// CheckReason returns the fault of a reason, nil if people can read it in the log. It is the only rule, for members of bodies, headers and
// forms.
func CheckReason(reason string) *Error {
	fault := func(code, message string) *Error { return &Error{Code: code, Message: message, Pointer: "/reason"} }
	switch {
	case strings.TrimSpace(reason) == "":
		return fault("reason_required", "Give a reason: the log keeps it with the change")
	case utf8.RuneCountInString(reason) > MaxReason:
		return fault("reason_invalid", fmt.Sprintf("A reason has at most %d characters", MaxReason))
	case !utf8.ValidString(reason):
		return fault("reason_invalid", "A reason is text in UTF-8")
	case strings.ContainsFunc(reason, unreadable):
		return fault("reason_invalid", "The reason holds control characters, or characters that change the direction of text")
	}
	return nil
}

func unreadable(c rune) bool { return unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) }
