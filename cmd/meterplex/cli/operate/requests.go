package operate

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// operateRequests lists the commands of one request.
func Requests() []app.Command {
	return []app.Command{
		{Name: "sagas list", Op: "listSagas", Columns: "id kind tenantId key state step attempts missing nextAt outcome lastError"},
		{Name: "sagas show", Op: "getSaga"},
		{Name: "sagas retry", Op: "retrySaga"},

		{Name: "system show", Op: "getSystem", Run: showSystem},
		{Name: "system instances", Op: "listInstances", Columns: "id state version roles startedAt seenAt endedAt",
			Tags: app.Tags{"--limit": `default:"100"`}},
		{Name: "system instance", Op: "getInstance", Run: showInstance},
		{Name: "system identity", Op: "getIdentity", Run: showIdentity,
			Help: "Show that no event is lost: accepted = aggregated + rejected + in flight + parked. Exit code 1 if it does not hold."},
	}
}
