package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod"
)

// equivalents are the commands that pages show, each with the text of a page that shows it.
type equivalents map[string]string

// collect keeps the commands of the page that is open.
func (e equivalents) collect(p *tab) {
	p.t.Helper()
	var lines []string
	p.must(json.Unmarshal([]byte(p.eval(`JSON.stringify((document.querySelector(".equivalents pre")?.textContent ?? "").split("\n").filter(l => l))`)), &lines))
	text := p.eval(`document.querySelector("main").textContent`)
	for _, line := range lines {
		e[line] = text
	}
}

// equivalentsRun runs each curl and each command of the command line that a page shows, but those that follow a stream until they are stopped. They end with 0, and the page shows the amounts that curl prints.
func equivalentsRun(t *testing.T, w *consoleWorld, _ *rod.Browser) {
	built, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	curls, commands, amounts := 0, 0, 0
	for line, page := range w.shown {
		if endless.MatchString(line) {
			continue
		}
		shell := exec.CommandContext(ctx, "sh", "-c", "meterplex() { "+built+" \"$@\"; }\n"+line)
		shell.Dir, shell.WaitDelay, shell.SysProcAttr = t.TempDir(), 10*time.Second, childAttributes()
		shell.Env = []string{"PATH=" + os.Getenv("PATH"), "METERPLEX_URL=" + w.at.url(), "METERPLEX_KEY=" + w.operator, "HOME=" + shell.Dir}
		out, err := shell.Output()
		if err != nil {
			t.Errorf("$ %s: %v\n%s", line, err, out)
			continue
		}
		if !strings.HasPrefix(line, "curl ") {
			commands++
			continue
		}
		curls++
		for _, amount := range amountsOf(out) {
			if amounts++; !strings.Contains(page, amount) {
				t.Errorf("$ %s\nprints the amount %s, which the page does not show:\n%s", line, amount, page)
			}
		}
	}
	if curls < 40 || commands < 20 || amounts < 5 {
		t.Errorf("%d requests, %d commands and %d amounts", curls, commands, amounts)
	}
	t.Logf("%d requests, %d commands and %d amounts", curls, commands, amounts)
}

// endless matches the commands that follow a stream.
var endless = regexp.MustCompile(` --watch| events tail | --follow`)

// amountsOf returns the members amount of the rows of an answer.
func amountsOf(answer []byte) (amounts []string) {
	var list struct {
		Data []struct{ Amount json.Number }
	}
	if json.Unmarshal(answer, &list) != nil {
		return nil
	}
	for _, row := range list.Data {
		if row.Amount != "" {
			amounts = append(amounts, row.Amount.String())
		}
	}
	return amounts
}
