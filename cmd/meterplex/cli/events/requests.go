package events

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// eventsRequests lists the commands of one request.
func Requests() []app.Command {
	return []app.Command{
		{Name: "events show", Op: "getEvent", Run: showEvent},
		{Name: "events lineage", Op: "getLineage", Run: showLineage},

		{Name: "schemas list", Op: "listSchemas", Columns: "subject version topic retention recorded"},
	}
}
