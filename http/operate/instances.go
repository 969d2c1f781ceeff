package operate

import (
	"context"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) instanceOperations(t *api.Site) {
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/system/instances", Who: auth.Operator, Scopes: operators,
		ID: "listInstances", Tag: "System", Summary: "List the instances",
		Description: "All instances of the last day, by id. Each reports every 5 s: one that did not report for 30 s is LOST, and one " +
			"that was stopped is ENDED."}, s.listInstances)
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
	return ListedInstance{i.ID, i.Version, append([]string{}, i.Roles...), i.State, i.StartedAt.UTC(), i.SeenAt.UTC(), api.UTC(i.EndedAt)}
}

func (s *handlers) listInstances(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[ListedInstance], error) {
	return api.ListCatalogue(api.List{"instances"}, in.Paging, func(p commands.Page) ([]ListedInstance, error) {
		found, err := s.Reader.Instances(ctx, p)
		return api.BodiesOf(found, listedInstanceOf), err
	}, func(i *ListedInstance) string { return i.ID })
}
