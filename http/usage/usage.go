// Package usage answers the operations of usage events, their figures and series.
package usage

import (
	"context"
	"net/http"
	"slices"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

// handlers answers the operations of this subject.
type handlers struct {
	*api.Service
}

// Routes registers the operations.
func Routes(t *api.Site) {
	s := &handlers{Service: t.Service}
	const path = api.Prefix + "/usage"
	gone := []int{http.StatusNotFound}
	readers := readersOfUsage()
	historians := slices.Insert(readersOfUsage(), 1, commands.ScopeEventsRead)
	t.ServeRaw(api.Operation{Method: http.MethodPost, Path: path + "/events", Who: auth.Tenant, Scopes: []string{commands.ScopeUsageWrite},
		Ingest: true, ID: "ingestUsage", Tag: "Usage", Summary: "Send usage events",
		Problems: []int{http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity},
		Description: "202 is answered once the accepted events are durable. Send the same batch again after any failure: an accepted " +
			"event is a duplicate then and counts once. " +
			"A correction replaces the amount of recorded usage, a retraction takes the usage back; `correctionRef` names it. " +
			"A single CloudEvent that is not recorded is a problem with the code of its result: 404, 409 or 422."}, describeIngest,
		s.ingest)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/events", Who: auth.Either, Scopes: readers, ID: "listUsageEvents",
		Tag: "Usage", Summary: "List usage events",
		Description: "Newest first. A page may hold fewer events than asked for and still have a nextCursor.", Problems: gone},
		s.listUsageEvents)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/events/{eventId}", Who: auth.Either, Scopes: readers,
		ID: "getReceipt", Tag: "Usage", Summary: "Read the receipt of one event",
		Description: "Each step with its time: recorded, published, validated or rejected, aggregated; the conflicts seen, and the " +
			"corrections with the amount after them.", Problems: gone}, s.receipt)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/conflicts", Who: auth.Either, Scopes: readers, ID: "listConflicts",
		Tag: "Usage", Summary: "List payload conflicts",
		Description: "EventIds that came again with another payload, with both hashes. The first payload stays.", Problems: gone},
		s.listConflicts)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/refusals", Who: auth.Either, Scopes: readers, ID: "listRefusals",
		Tag: "Usage", Summary: "List refused usage",
		Description: "Usage events that POST /usage/events refused, which are not billed: counted by code and feature, with the last " +
			"samples, the last refused first. " +
			"A refusal is listed about a second after its answer. An operator's key that names no tenant gets the groups of all tenants.",
		Problems: gone}, s.listRefusals)
	api.ServeStream(t, api.Operation{Method: http.MethodGet, Path: path + "/aggregates", Who: auth.Either, Scopes: historians,
		ID: "listAggregates", Tag: "Usage", Summary: "Read the billing figures",
		Description: "Newest period first. Amounts are exact integers. A key with `events:read` alone reads them as of a position or a " +
			"time. An operator's key that names no tenant gets the figures of all tenants in a `period`, by tenant, feature and " +
			"subscription. " +
			"As CSV, by `Accept: text/csv` or `format=csv`, all figures are one answer.", Problems: gone}, describeAggregates, s.aggregates)
	api.ServeStream(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Either, Scopes: readers, ID: "getSeries", Tag: "Usage",
		Summary: "Read a usage series",
		Description: "The usage of a feature by the hour, the day or the month (UTC) of its own time, for charts. Without groupBy every " +
			"bucket of the range has an entry, with zeros if it has no usage; with groupBy the groups with usage have one. " +
			"As CSV, by `Accept: text/csv` or `format=csv`, all buckets are one answer.", Problems: gone}, describeSeries, s.series)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path + "/aggregates/explain", Who: auth.Either, Scopes: historians,
		ID: "explainAggregate", Tag: "Usage", Summary: "Read the events of a figure",
		Description: "In the order in which they were counted, with the running total. All pages together add up to the figure of the " +
			"first page, also where more is counted meanwhile. " +
			"A page may hold fewer events than asked for, or be empty, and still have a nextCursor: it reads at most 10,000 results of " +
			"the figure, those of other subscriptions included.",
		Problems: gone}, s.explain)
}

// readersOfUsage are the scopes of which one lets a key read the present usage.
func readersOfUsage() []string {
	return []string{commands.ScopeUsageRead, commands.ScopeBilling, commands.ScopeAudit}
}

type usageEventsRequest struct {
	api.OfTenant
	api.Freshness
	api.Between
	api.Paging
	Feature string `query:"feature"`
	Status  string `query:"status" enum:"PENDING,VALIDATED,AGGREGATED,REJECTED,DUPLICATE,DEAD_LETTERED" doc:"DUPLICATE lists no event: duplicates are answered, not stored."`
}

func (s *handlers) listUsageEvents(ctx context.Context, in *usageEventsRequest) (*api.Listed[audit.UsageEventRow], error) {
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	from, to, err := in.Read()
	if err != nil {
		return nil, err
	}
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	l := api.List{"usage events", tenant.String(), in.Feature, in.Status, in.From, in.To}
	return api.ListRead(l, in.Paging, func(limit int, after string) (query.Page[audit.UsageEventRow], error) {
		return s.Reads.Events.UsageEvents(ctx, viewer, audit.EventQuery{TenantID: tenant, Feature: in.Feature, Status: in.Status,
			From: from, To: to, Limit: limit, After: after, Wait: wait})
	})
}

type receiptRequest struct {
	api.OfTenant
	api.Freshness
	EventID string `path:"eventId" maxLength:"255"`
}

type receiptAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    audit.Receipt
}

func (s *handlers) receipt(ctx context.Context, in *receiptRequest) (*receiptAnswer, error) {
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	if !isEventID(in.EventID) {
		return nil, query.ErrNotFound
	}
	r, err := s.Reads.Events.Receipt(ctx, viewer, tenant, in.EventID, wait)
	return &receiptAnswer{in.Applied(), r}, err
}

// isEventID reports whether id can be an eventId. Other ids were never recorded.
func isEventID(id string) bool {
	for _, c := range []byte(id) {
		if c < '!' || c > '~' {
			return false
		}
	}
	return id != "" && len(id) <= intake.MaxEventID
}

type conflictsRequest struct {
	api.OfTenant
	api.Freshness
	api.Paging
}

func (s *handlers) listConflicts(ctx context.Context, in *conflictsRequest) (*api.Listed[audit.Conflict], error) {
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	l := api.List{"conflicts", tenant.String()}
	return api.ListRead(l, in.Paging, func(limit int, after string) (query.Page[audit.Conflict], error) {
		return s.Reads.Events.Conflicts(ctx, viewer, tenant, limit, after, wait)
	})
}
