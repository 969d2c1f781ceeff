package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
)

// TestTheHelpOfKeysNamesEveryScope that this version offers.
func TestTheHelpOfKeysNamesEveryScope(t *testing.T) {
	parser, err := newConsole(t, nil).app.newParser(&grammar{})
	if err != nil {
		t.Fatal(err)
	}
	var help string
	for _, noun := range parser.Model.Children {
		for _, verb := range noun.Children {
			for _, flag := range verb.Flags {
				if noun.Name == "keys" && verb.Name == "create" && flag.Name == "scope" {
					help = flag.Help
				}
			}
		}
	}
	for _, scope := range slices.Concat(commands.TenantScopes(), commands.OperatorScopes()) {
		if !strings.Contains(help, scope) {
			t.Errorf("the scope %s is not in %q", scope, help)
		}
	}
}
