package node

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// An instance opens as many connections as its roles can use, or as many as METERPLEX_DATABASE_CONNECTIONS gives; it does not start with
// fewer than its roles need. docs/how-to/sizing.md and the chart have these numbers.
func TestRolesDivideTheConnections(t *testing.T) {
	all := config.AllRoles()
	for _, c := range []struct {
		roles       []string
		pipe        string
		least, most int
	}{
		{all, config.PipeKafka, 23, 36},
		{all, config.PipePostgres, 31, 50},
		{all, "", 31, 50}, // without brokers
		{[]string{"api"}, config.PipeKafka, 20, 29},
		{[]string{"relay", "validator", "aggregator", "deadletter", "commands"}, config.PipeKafka, 15, 23},
		{[]string{"projector"}, config.PipeKafka, 15, 29},
		{[]string{"sagas", "biller", "notifier"}, config.PipeKafka, 12, 16},
		{[]string{"relay"}, config.PipePostgres, 17, 31},
	} {
		for given := range c.most + 9 {
			got, err := Connections(config.Config{Roles: c.roles, Pipe: c.pipe, DatabaseConnections: int64(given)})
			switch {
			case given > 0 && given < c.least:
				if err == nil || !strings.Contains(err.Error(), "METERPLEX_DATABASE_CONNECTIONS") {
					t.Errorf("%v with %d: %d, %v", c.roles, given, got, err)
				}
			case err != nil || got > max(given, c.least) && given > 0 || (given == 0 || given >= c.most) && got != c.most:
				t.Errorf("%v with %d: %d, %v", c.roles, given, got, err)
			}
		}
	}
}
