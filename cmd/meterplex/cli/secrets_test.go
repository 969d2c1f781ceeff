package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// TestALostSecretIsReported: the answer with the secret was lost, and the repeat is answered without it. The command fails, and names the
// command that makes another secret, unless an earlier call may have shown it.
func TestALostSecretIsReported(t *testing.T) {
	for args, remedy := range map[string]string{
		"keys create --tenant t1 --name n --scope usage:write":                   "meterplex keys rotate id-1 --tenant t1 --overlap 0s",
		"keys create --operator --name n --scope admin":                          "meterplex keys rotate id-1 --operator --overlap 0s",
		"keys rotate k1 --tenant t1":                                             "meterplex keys rotate id-1 --tenant t1 --overlap 0s",
		"keys rotate k1 --operator":                                              "meterplex keys rotate id-1 --operator --overlap 0s",
		"webhooks create https://example.com/ --tenant t1 --event period.closed": "meterplex webhooks rotate id-1 --tenant t1",
		"webhooks rotate id-1 --tenant t1":                                       "meterplex webhooks rotate id-1 --tenant t1",
	} {
		for _, c := range []struct {
			once string
			lost bool
			code int
			text string
		}{
			{"", true, app.ExitUnknown, "the answer with the secret was lost"},
			{"", false, app.ExitYes, "Keep the secret now"},
			{" --idempotency-key mine", true, app.ExitYes, "in the first answer"},
			{" --idempotency-key mine", false, app.ExitYes, "Keep the secret now"},
		} {
			sent := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch sent++; {
				case c.lost && sent == 1:
					panic(http.ErrAbortHandler)
				case c.lost:
					fmt.Fprint(w, `{"id":"id-1"}`)
				default:
					w.WriteHeader(http.StatusCreated)
					fmt.Fprint(w, `{"id":"id-1","secret":"s"}`)
				}
			}))
			code, out, errs := newConsole(t, &fakeService{url: s.URL}).run(strings.Fields(args + c.once)...)
			if s.Close(); code != c.code || !strings.Contains(errs, c.text) || c.lost != strings.Contains(errs, remedy) ||
				(out == "") != (code != app.ExitYes) {
				t.Errorf("%s%s, lost %t: exit code %d\n%s%s", args, c.once, c.lost, code, out, errs)
			}
		}
	}
}
