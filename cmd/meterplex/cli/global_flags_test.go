package cli

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

// TestNoCommandShadowsAGlobalFlag: no flag, alias or argument of a command has the name of a flag of all commands. A user who gives the
// argument as a flag would set the global one: a webhook's URL as --url was the host that got the operator's key.
func TestNoCommandShadowsAGlobalFlag(t *testing.T) {
	parser, err := newConsole(t, nil).app.parserFor(&app.ClientFlags{}, "")
	must.OK(t, err)
	var global []string
	for _, flag := range parser.Model.Flags {
		global = append(global, append([]string{flag.Name}, flag.Aliases...)...)
	}
	seen := 0
	must.OK(t, kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if n, ok := node.(*kong.Node); ok {
			for _, name := range namesOf(n) {
				if seen++; slices.Contains(global, name) {
					t.Errorf("%s: %s is a flag of all commands", n.FullPath(), name)
				}
			}
		}
		return next(nil)
	}))
	if seen < 300 || !slices.Contains(global, "server") {
		t.Errorf("%d names, global flags %q", seen, global)
	}
}

// namesOf returns the names of a command's own flags and arguments.
func namesOf(n *kong.Node) (names []string) {
	for _, flag := range n.Flags {
		names = append(names, append([]string{flag.Name}, flag.Aliases...)...)
	}
	for _, arg := range n.Positional {
		names = append(names, arg.Name)
	}
	return names
}

// TestURLIsNoFlag: the former global flag names its successor, and no request is sent.
func TestURLIsNoFlag(t *testing.T) {
	for _, args := range []string{"webhooks create --tenant t --event period.closed --url http://h.example https://c.example",
		"tenants list --url=http://h.example", "--url http://h.example tenants list"} {
		p := newFakeService(t)
		code, _, errs := newConsole(t, p).run(strings.Fields(args)...)
		if code != app.ExitUnknown || len(p.requests) != 0 || !strings.Contains(errs, "--server is the service's address") {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, p.requests, errs)
		}
	}
}

// TestKeysFollowNoRedirect: a key is sent to the configured host alone, whatever that answers.
func TestKeysFollowNoRedirect(t *testing.T) {
	var followed atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(other.Close)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(service.Close)
	for _, args := range []string{"tenants list", "webhooks create https://c.example --tenant t --event period.closed", "events tail",
		"usage send a 1"} {
		code, _, errs := newConsole(t, nil).run(append(strings.Fields(args), "--server", service.URL, "--key", "mp_op_secret",
			"--retry-for", "0s")...)
		if code == app.ExitYes || followed.Load() != 0 {
			t.Errorf("%s: exit code %d, %d requests followed\n%s", args, code, followed.Load(), errs)
		}
	}
}
