package http_test

import (
	"html"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

var shellForm = regexp.MustCompile(`(?s)<pre tabindex="0" class="shell">(.*?)</pre>`)

// TestTheQuickStartOfThePageWorks: its commands are run as they are shown.
func TestTheQuickStartOfThePageWorks(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing")
	}
	w, a := newServiceWithAccount(t)
	commands := shellForm.FindAllStringSubmatch(string(w.do(call{method: "GET", path: "/docs"}).body), -1)
	wants := [][]string{
		{`"accepted":1,"duplicates":0,"conflicts":0,"rejected":1`, `"eventId":"order-2","status":"rejected","code":"feature_not_found"`},
		{`"eventId":"order-1"`, `"status":"AGGREGATED"`},
		{`"amount":3`, `"allowed":true`, `"remaining":997`},
	}
	if len(commands) != len(wants) {
		t.Fatalf("the page shows %d commands", len(commands))
	}
	for i, command := range commands {
		run := exec.CommandContext(t.Context(), "sh", "-ec", html.UnescapeString(command[1]))
		run.Env = append(os.Environ(), "METERPLEX_URL="+w.url, "METERPLEX_KEY="+a.key)
		out, err := run.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, want := range wants[i] {
			w.holds("answers no", string(out), want)
		}
		w.fold()
	}
}
