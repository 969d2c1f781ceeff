package intake

import (
	"strings"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
)

// refused makes a document's fault an error; nil stays nil.
func refused(fault *strictjson.Fault) *domain.Error {
	if fault == nil {
		return nil
	}
	return &domain.Error{Code: fault.Code, Message: fault.Message}
}

// pointerTo returns "/name" with the escapes of RFC 6901. A name longer than 64 characters
// is cut and ends in "…"; the pointer is then only a hint.
func pointerTo(name []byte) string {
	cut := strictjson.Clip(name)
	s := strings.ToValidUTF8(string(cut), "\uFFFD")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
	if len(cut) < len(name) {
		s += "…"
	}
	return "/" + s
}

// asError converts e without making a non-nil interface from a nil *Error.
func asError(e *domain.Error) error {
	if e == nil {
		return nil
	}
	return e
}
