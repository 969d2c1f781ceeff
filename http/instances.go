package http

import (
	"context"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *operateHandlers) instanceOperations(t *site) {
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	serve(t, operation{method: http.MethodGet, path: prefix + "/system/instances", who: auth.Operator, scopes: operators, id: "listInstances", tag: "System", summary: "List the instances",
		description: "All instances of the last day, by id. Each reports every 5 s: one that did not report for 30 s is LOST, and one that was stopped is ENDED."}, s.listInstances)
}

// ListedInstance is an instance of the list.
type ListedInstance struct {
	ID        string     `json:"id" doc:"Its name in leases and logs." example:"host-4711-a1b2c3"`
	Version   string     `json:"version" doc:"Its release."`
	Roles     []string   `json:"roles" nullable:"false" doc:"Its roles."`
	State     string     `json:"state" enum:"RUNNING,LOST,ENDED" doc:"LOST: it was killed, or its database connections fail."`
	StartedAt time.Time  `json:"startedAt" doc:"Its first report."`
	SeenAt    time.Time  `json:"seenAt" doc:"Its last report."`
	EndedAt   *time.Time `json:"endedAt" doc:"When it was stopped; null: it was not."`
}

func listedInstanceOf(i *commands.Instance) ListedInstance {
	return ListedInstance{i.ID, i.Version, append([]string{}, i.Roles...), i.State, i.StartedAt.UTC(), i.SeenAt.UTC(), utc(i.EndedAt)}
}

func (s *operateHandlers) listInstances(ctx context.Context, in *struct{ Paging }) (*listed[ListedInstance], error) {
	return listCatalogue(list{"instances"}, in.Paging, func(p commands.Page) ([]ListedInstance, error) {
		found, err := s.Reader.Instances(ctx, p)
		return bodiesOf(found, listedInstanceOf), err
	}, func(i *ListedInstance) string { return i.ID })
}
