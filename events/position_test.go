package events

import (
	"math"
	"strings"
	"testing"
)

// A position is read only in the form in which it is written.
func TestPositionsAreReadAsWritten(t *testing.T) {
	for _, p := range []Position{{0, 0}, {31, 1}, {17, 4711}, {9, math.MaxInt64}} {
		if got, err := ParsePosition(p.String()); err != nil || got != p {
			t.Errorf("%s is read as %v, %v", p, got, err)
		}
	}
	for _, s := range strings.Fields("- 1 1- -1 01-1 1-01 1-00 32-1 1--1 +1-1 1-+1 1-1- 1-9223372036854775808 1-99999999999999999999 " +
		"9999999999999999999999-1 1-1a") {
		if p, err := ParsePosition(s); err == nil {
			t.Errorf("%q is read as %v", s, p)
		}
	}
	if _, err := ParsePosition(""); err == nil {
		t.Error("nothing is a position")
	}
}
