package projections

import "github.com/meterplex/meterplex/events"

// Parts of statements about events that failed, each about a row of the log by its name f in the statement. events.SQL completes them.

// UncountedVerdict is the condition that a failure says of its source that the aggregator could not fold it, or that the pipe did not carry
// it: it does not count until a retry. The actors more are those whose failures to fold count too.
func UncountedVerdict(f string, more ...string) string {
	actors := "'" + events.GroupAggregator + "'"
	for _, actor := range more {
		actors += ", '" + actor + "'"
	}
	return f + `.subject IN ({usage.event.publish_failed}, {usage.event.aggregation_failed})
    AND (` + f + `.subject = {usage.event.publish_failed} OR EXISTS (SELECT FROM log_origins o WHERE o.id = ` + f +
		`.origin AND o.actor_id IN (` + actors + `)))`
}

// FailureSource is the number of the event that failed, as text, as the index event_log_failures has it.
func FailureSource(f string) string {
	return `CASE WHEN ` + Unreadable(f) + ` THEN NULL ELSE ` + f + `.body ->> 'sourcePosition' END`
}

// Unreadable is the condition that PostgreSQL may be unable to read the body of a row as JSON: it has \u0000 or half of a surrogate pair as
// an escape, which begins behind an even number of backslashes. The expressions of the log's indexes have NULL for such a body.
func Unreadable(row string) string {
	return row + `.body::text ~* '[^\\](\\\\)*\\u(0000|d[89a-f])'`
}
