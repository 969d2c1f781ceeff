package webhooks

import (
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The vector of Standard Webhooks.
const (
	secret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	id        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	seconds   = 1614265330
	body      = `{"test": 2432232314}`
	signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

// request is a request with a result.
type request struct {
	name, secret, id, signature, body string
	now                               int64
	accepted                          bool
}

func requests() []request {
	return []request{
		{"the vector", secret, id, signature, body, seconds, true},
		{"one of two", secret, id, "v1,AAAA " + signature, body, seconds + 300, true},
		{"early", secret, id, signature, body, seconds - 300, true},
		{"too old", secret, id, signature, body, seconds + 301, false},
		{"too early", secret, id, signature, body, seconds - 301, false},
		{"another body", secret, id, signature, `{"test":2432232314}`, seconds, false},
		{"another id", secret, "msg_x", signature, body, seconds, false},
		{"another secret", "whsec_" + strings.Repeat("A", 32), id, signature, body, seconds, false},
		{"no signature", secret, id, "", body, seconds, false},
		{"another version", secret, id, "v2" + signature[2:], body, seconds, false},
	}
}

func TestGo(t *testing.T) {
	for _, r := range requests() {
		header := http.Header{}
		header.Set("webhook-id", r.id)
		header.Set("webhook-timestamp", strconv.Itoa(seconds))
		header.Set("webhook-signature", r.signature)
		if got := Verify(r.secret, header, []byte(r.body), time.Unix(r.now, 0)); got != r.accepted {
			t.Errorf("%s: accepted is %v", r.name, got)
		}
	}
}

func TestPython(t *testing.T) { byScript(t, "python3", "verify.py") }

func TestTypeScript(t *testing.T) {
	byScript(t, "node", "--experimental-strip-types", "--no-warnings", "verify.ts")
}

// byScript verifies the requests with a program, if its interpreter is installed.
func byScript(t *testing.T, command ...string) {
	t.Helper()
	tier.AtSize(t)
	probe := append(command[:len(command)-1:len(command)-1], "--version")
	if err := exec.CommandContext(t.Context(), probe[0], probe[1:]...).Run(); err != nil {
		t.Skipf("%s cannot run: %v", probe[0], err)
	}
	for _, r := range requests() {
		args := append(command[1:len(command):len(command)], r.secret, r.id, strconv.Itoa(seconds), r.signature,
			strconv.FormatInt(r.now, 10))
		program := exec.CommandContext(t.Context(), command[0], args...)
		program.Stdin = strings.NewReader(r.body)
		out, err := program.CombinedOutput()
		if want := map[bool]string{true: "accepted\n", false: "refused\n"}[r.accepted]; err != nil || string(out) != want {
			t.Errorf("%s: %q, %v instead of %q", r.name, out, err, want)
		}
	}
}
