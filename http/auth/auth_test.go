package auth

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// FuzzKeys: Authorization holds a key of the documented form, or is refused.
func FuzzKeys(f *testing.F) {
	form := regexp.MustCompile(`^mp_(live|test|op)_[A-Za-z0-9_-]{32,}$`)
	secret := strings.Repeat("a", 43)
	for _, value := range []string{"Bearer mp_live_" + secret, "bearer mp_op_" + secret, "Bearer  mp_test_" + secret,
		"Basic mp_live_" + secret, "Bearer mp_live_" + secret[:31], "Bearer mp__" + secret,
		"Bearer mp_root_" + secret, "Bearer mp_live_" + strings.Repeat("b", 4096), "Bearer mp_live_" + secret + "\n", "Bearer", "",
		"Bearer mp_live_" + secret + " ", "\x00"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Authorization"] = []string{value}
		key := bearer(r)
		scheme, rest, _ := strings.Cut(value, " ")
		want := strings.EqualFold(scheme, "bearer") && form.MatchString(rest) && !strings.Contains(rest, "\n") && len(rest) <= maxKey
		if want != (key != "") || key != "" && key != rest {
			t.Fatalf("%q gives %q", value, key)
		}
		r.Header["Authorization"] = []string{value, value}
		if bearer(r) != "" {
			t.Fatalf("%q is accepted twice", value)
		}
	})
}
