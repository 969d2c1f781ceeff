package commands

import (
	"strings"

	"github.com/meterplex/meterplex/domain"
)

// OrRefuse returns the failure of a load, and a refusal without one.
func OrRefuse(err error, code, pointer, message string) error {
	if err != nil {
		return err
	}
	return domain.Refuse(code, pointer, "%s", message)
}

// OneOf refuses a value that is not among the allowed ones.
func OneOf(value, code, pointer string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return domain.Refuse(code, pointer, "%s must be one of %s", strings.TrimPrefix(pointer, "/"), strings.Join(allowed, ", "))
}
