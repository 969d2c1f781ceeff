package commands

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/meterplex/meterplex/domain"
)

// maxName bounds display names, in characters.
const maxName = 200

func refuse(code, pointer, format string, args ...any) *domain.Error {
	return &domain.Error{Code: code, Message: fmt.Sprintf(format, args...), Pointer: pointer}
}

func orRefuse(err error, code, pointer, message string) error {
	if err != nil {
		return err
	}
	return refuse(code, pointer, "%s", message)
}

func checkName(name string) error {
	if strings.TrimSpace(name) == "" || !isText(name, maxName) {
		return refuse("name_invalid", "/name", "name must be 1 to %d characters of text without control characters", maxName)
	}
	return nil
}

// isText reports whether a text is valid UTF-8 of at most so many characters, without control characters.
func isText(text string, longest int) bool {
	return utf8.ValidString(text) && utf8.RuneCountInString(text) <= longest && !strings.ContainsFunc(text, unicode.IsControl)
}

func oneOf(value, code, pointer string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return refuse(code, pointer, "%s must be one of %s", strings.TrimPrefix(pointer, "/"), strings.Join(allowed, ", "))
}
