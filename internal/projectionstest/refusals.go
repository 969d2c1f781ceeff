package projectionstest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/domain"
)

// Second returns the error of a call with two results.
func Second[T any](_ T, err error) error { return err }

// RefusedAs requires an error.
func RefusedAs(t *testing.T, want, err error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// RefusedWith requires a refusal with a code.
func RefusedWith(t *testing.T, code string, err error) {
	t.Helper()
	if no := (*domain.Error)(nil); !errors.As(err, &no) || no.Code != code || no.Message == "" {
		t.Errorf("%v instead of %s", err, code)
	}
}

// Refusal returns the code of a refusal; of other errors, their text.
func Refusal(err error) string {
	if refused := (*domain.Error)(nil); errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}
