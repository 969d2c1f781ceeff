package domain

import (
	"strings"
	"testing"
)

// A reason has 500 characters, whatever their width in bytes.
func TestTheReasonIsBoundedInCharacters(t *testing.T) {
	for name, c := range map[string]struct{ reason, code string }{
		"empty":                   {"", "reason_required"},
		"spaces":                  {" \t\u00a0", "reason_required"},
		"500 of one byte":         {strings.Repeat("r", 500), ""},
		"500 of two bytes":        {strings.Repeat("ü", 500), ""},
		"500 of three bytes":      {strings.Repeat("理", 500), ""},
		"500 of four bytes":       {strings.Repeat("😀", 500), ""},
		"501 of one byte":         {strings.Repeat("r", 501), "reason_invalid"},
		"501 of four bytes":       {strings.Repeat("😀", 501), "reason_invalid"},
		"a control character":     {"a\x07", "reason_invalid"},
		"two lines":               {"a\nb", "reason_invalid"},
		"another direction":       {"a\u202eb", "reason_invalid"},
		"bytes that are no UTF-8": {"a\xff", "reason_invalid"},
	} {
		fault := CheckReason(c.reason)
		if fault == nil && c.code != "" || fault != nil && (fault.Code != c.code || fault.Pointer != "/reason" || fault.Message == "") {
			t.Errorf("%s: %+v, want %q", name, fault, c.code)
		}
	}
}
