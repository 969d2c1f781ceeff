package operate

import (
	"encoding/json"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// ConfigCmd groups the config commands.
type ConfigCmd struct {
	Print ConfigPrint `cmd:"" help:"Show each setting, its value and where the value came from."`
}

// ConfigPrint shows the settings that serve and the client commands would use.
type ConfigPrint struct {
	config.ServiceFlags
}

// Help returns the long help text.
func (ConfigPrint) Help() string {
	return `A flag wins over the environment, the environment over the file, the file over the default. An empty variable counts as not given.

The file is named by --config or METERPLEX_CONFIG. It holds lines KEY=VALUE with the names that this command lists, and comments that
begin with #. A name that is not known is an error.

Passwords and keys are masked. Exit code 2 where a value is not valid; each error names the source of the value.`
}

// Run prints the values even if one of them is invalid: that is when they are
// needed most.
func (c *ConfigPrint) Run(a *app.App) error {
	_, all, wrong := a.Config(c.ServiceFlags)
	a.ReportUnknown()
	out := a.Rows("name", "value", "source")
	for _, r := range all {
		row, err := json.Marshal(map[string]string{"name": r.Name, "value": r.Shown(), "source": r.Source})
		if err != nil {
			return err
		}
		if err := out.Row(row); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return wrong
}
