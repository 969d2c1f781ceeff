package operate

import (
	"context"
	"net/http"

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

// listedInstance is an instance of the list.
type listedInstance commands.Instance

func (s *handlers) listInstances(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[listedInstance], error) {
	return api.ListCatalogue(api.List{"instances"}, in.Paging, func(p commands.Page) ([]listedInstance, error) {
		found, err := s.Reader.Instances(ctx, p)
		return api.BodiesOf(found, func(i *commands.Instance) listedInstance { return listedInstance(*i) }), err
	}, func(i *listedInstance) string { return i.ID })
}
