package cli

import (
	"encoding/json"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
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

The file is named by --config or METERPLEX_CONFIG. It holds lines KEY=VALUE with the names that this command lists, and comments that begin with #. A name that is not known is an error.

Passwords and keys are masked. Exit code 2 where a value is not valid; each error names the source of the value.`
}

// Run prints the values even if one of them is invalid: that is when they are
// needed most.
func (c *ConfigPrint) Run(a *app) error {
	_, all, wrong := a.config(c.ServiceFlags)
	a.reportUnknown()
	out := a.rows("name", "value", "source")
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

// config resolves the settings from the client's flags and the command's own flags.
func (a *app) config(more ...any) (config.Config, []config.Resolved, error) {
	return config.Load(a.flags.Config, a.env, append([]any{a.flags.Connection}, more...)...)
}

// reportUnknown warns of variables that look like settings but are unknown.
func (a *app) reportUnknown() {
	for _, name := range config.Unknown(a.names) {
		a.report("%s is set, and is no setting: meterplex config print lists those that are", output.Printable(name))
	}
}
