package simulation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// actors are those of the simulation's events, each with its index + 1 as the number of its
// origin: producer, vocabulary and residency are the same for all.
var actors = []events.Actor{
	{Type: "api_key", ID: uuid.Nil.String()}, {Type: "service", ID: events.GroupValidator}, {Type: "service", ID: events.GroupAggregator},
	{Type: "service", ID: events.GroupUsageCommands}, {Type: "service", ID: "meterplex-relay"}, {Type: "service", ID: events.GroupCommands},
	{Type: "service", ID: "meterplex-rebuilder"},
}

// originQuery executes the statements about origins. No failover loses an origin.
func (db *simDB) originQuery(text string, args []any) *simRows {
	switch {
	case strings.HasPrefix(text, "INSERT INTO log_vocabularies"):
		return &simRows{tag: "INSERT 0 0"}
	case strings.Contains(text, "log_origins o WHERE o.actor_type = v.actor_type"):
		types, ids, residencies := args[0].([]string), args[1].([]string), args[2].([]string)
		out := simAnswer()
		for n := range types {
			at := slices.Index(actors, events.Actor{Type: types[n], ID: ids[n]})
			if at < 0 || residencies[n] != events.ResidencyUnspecified {
				panic(fmt.Sprint("the simulation does not know the origin ", types[n], ids[n], residencies[n]))
			}
			out.list = append(out.list, []any{int64(n + 1), int32(at + 1)})
		}
		return out
	case strings.HasPrefix(text, "SELECT id, actor_type, actor_id"):
		out := simAnswer()
		for _, id := range args[0].([]int32) {
			by := actors[id-1]
			out.list = append(out.list, []any{id, by.Type, by.ID, "simulation", "", "", events.CurrentVocabulary().Hash(),
				events.ResidencyUnspecified, ""})
		}
		return out
	}
	return nil
}
