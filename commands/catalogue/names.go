package catalogue

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/meterplex/meterplex/domain"
)

// maxName bounds display names, in characters.
const maxName = 200

func checkName(name string) error {
	if strings.TrimSpace(name) == "" || !isText(name, maxName) {
		return domain.Refuse("name_invalid", "/name", "name must be 1 to %d characters of text without control characters", maxName)
	}
	return nil
}

// isText reports whether a text is valid UTF-8 of at most so many characters, without control characters.
func isText(text string, longest int) bool {
	return utf8.ValidString(text) && utf8.RuneCountInString(text) <= longest && !strings.ContainsFunc(text, unicode.IsControl)
}
