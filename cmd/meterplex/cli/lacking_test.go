package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

// TestAMissingArgumentIsNamedWithAnExample: the error of an incomplete command has each missing name, and an example
// that is complete.
func TestAMissingArgumentIsNamedWithAnExample(t *testing.T) {
	parser, err := newConsole(t, nil).app.parserFor(&app.ClientFlags{}, "")
	must.OK(t, err)
	seen := 0
	for _, leaf := range parser.Model.Leaves(true) {
		args := strings.Fields(leaf.FullPath())[1:]
		wrong := parses(t, args)
		if wrong == nil {
			continue
		}
		text := lacking(wrong).Error()
		_, example, found := strings.Cut(text, ", e.g.\n  meterplex ")
		if !found {
			t.Errorf("%s: %s", leaf.FullPath(), text)
			continue
		}
		seen++
		if err := parses(t, strings.Fields(strings.ReplaceAll(example, "'wrong unit'", "r"))); err != nil {
			t.Errorf("%s: the example %s: %v", leaf.FullPath(), example, err)
		}
		for _, arg := range leaf.Positional {
			if arg.Required && !strings.Contains(text, "<"+arg.Name+">") {
				t.Errorf("%s: %s does not name %s", leaf.FullPath(), text, arg.Name)
			}
		}
	}
	if seen < 60 {
		t.Errorf("%d commands need an argument", seen)
	}
	for args, want := range map[string]string{
		"tenants show": "meterplex: tenants show needs <tenant>, e.g.\n  meterplex tenants show TENANT\n",
		"keys create --name Acme --operator": "meterplex: keys create needs --scope=SCOPE,..., e.g.\n" +
			"  meterplex keys create --name Acme --operator --scope usage:write\n",
		"entitlements release api_calls": "meterplex: entitlements release needs <reservation-id>, e.g.\n  meterplex entitlements " +
			"release api_calls RESERVATION-ID\n",
	} {
		if code, _, errs := newConsole(t, nil).run(strings.Fields(args)...); code != app.ExitUnknown || !strings.HasPrefix(errs, want) {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
	}
}

// TestAFlagWithoutAValueIsNamed: a shell drops an empty variable, so the next word is a flag or absent.
func TestAFlagWithoutAValueIsNamed(t *testing.T) {
	for args, example := range map[string]string{
		"usage explain --feature api_calls --tenant":         "--tenant ID",
		"usage explain --tenant --feature api_calls":         "--tenant ID",
		"usage explain --tenant-id --feature=api_calls":      "--tenant ID",
		"keys create --operator --name Acme --scope -o json": "--scope usage:write",
		"keys create --operator --scope --name Acme":         "--scope usage:write",
		"tenants list --limit":                               "--limit N",
		"tenants list -o":                                    "--output table",
		"--server":                                           "--server URL",
		"events query --tenant ''":                           "--tenant ID",
		"events query --tenant=":                             "--tenant ID",
		"keys revoke k1 --tenant ''":                         "--tenant ID",
		"tenants show ''":                                    "TENANT",
	} {
		flag, _, found := strings.Cut(example, " ")
		if !found {
			flag = "<" + strings.ToLower(example) + ">"
		}
		want := "meterplex: " + flag + " needs a value: is the variable that you gave empty? E.g. " + example + "\n"
		words := strings.Fields(args)
		for i := range words {
			words[i] = strings.Trim(words[i], "'")
		}
		if code, _, errs := newConsole(t, nil).run(words...); code != app.ExitUnknown || !strings.HasPrefix(errs, want) {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
	}
	for _, args := range []string{"usage explain --tenant --x --feature api_calls", "tenants list --limit -5"} { // no flags of the command
		if _, _, errs := newConsole(t, nil).run(strings.Fields(args)...); !strings.Contains(errs, "perhaps try --") {
			t.Errorf("%s: %s", args, errs)
		}
	}
}

// TestATenantIsGivenByOneFlag: each command that takes a tenant shows --tenant, and accepts --tenant-id.
func TestATenantIsGivenByOneFlag(t *testing.T) {
	parser, err := newConsole(t, nil).app.parserFor(&app.ClientFlags{}, "")
	must.OK(t, err)
	seen := 0
	must.OK(t, kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && slices.ContainsFunc(append(flag.Aliases, flag.Name), isTenant) {
			if seen++; flag.Name != "tenant" || strings.Join(flag.Aliases, " ") != "tenant-id" {
				t.Errorf("--%s, also %q", flag.Name, flag.Aliases)
			}
		}
		return next(nil)
	}))
	if seen < 40 {
		t.Errorf("%d flags", seen)
	}
}

func isTenant(name string) bool { return name == "tenant" || name == "tenant-id" }
