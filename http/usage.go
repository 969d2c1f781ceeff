package http

import (
	"context"
	"net/http"
	"slices"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *usageHandlers) usageOperations(t *site) {
	const path = prefix + "/usage"
	gone := []int{http.StatusNotFound}
	readers := readersOfUsage()
	historians := slices.Insert(readersOfUsage(), 1, commands.ScopeEventsRead)
	t.serveRaw(operation{method: http.MethodPost, path: path + "/events", who: auth.Tenant, scopes: []string{commands.ScopeUsageWrite}, ingest: true, id: "ingestUsage", tag: "Usage", summary: "Send usage events",
		problems: []int{http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity},
		description: "202 is answered once the accepted events are durable. Send the same batch again after any failure: an accepted event is a duplicate then and counts once. " +
			"A correction replaces the amount of recorded usage, a retraction takes the usage back; `correctionRef` names it. " +
			"A single CloudEvent that is not recorded is a problem with the code of its verdict: 404, 409 or 422."}, describeIngest, s.ingest)
	serve(t, operation{method: http.MethodGet, path: path + "/events", who: auth.Either, scopes: readers, id: "listUsageEvents", tag: "Usage", summary: "List usage events",
		description: "Newest first. A page may hold fewer events than asked for and still have a nextCursor.", problems: gone}, s.listUsageEvents)
	serve(t, operation{method: http.MethodGet, path: path + "/events/{eventId}", who: auth.Either, scopes: readers, id: "getReceipt", tag: "Usage", summary: "Read the receipt of one event",
		description: "Each step with its time: recorded, published, validated or rejected, aggregated; the conflicts seen, and the corrections with the amount after them.", problems: gone}, s.receipt)
	serve(t, operation{method: http.MethodGet, path: path + "/conflicts", who: auth.Either, scopes: readers, id: "listConflicts", tag: "Usage", summary: "List payload conflicts",
		description: "EventIds that came again with another payload, with both hashes. The first payload stays.", problems: gone}, s.listConflicts)
	serve(t, operation{method: http.MethodGet, path: path + "/refusals", who: auth.Either, scopes: readers, id: "listRefusals", tag: "Usage", summary: "List refused usage",
		description: "Usage events that POST /usage/events refused, which are not billed: counted by code and feature, with the last samples, the last refused first. " +
			"A refusal is listed about a second after its answer. An operator's key that names no tenant gets the groups of all tenants.", problems: gone}, s.listRefusals)
	serveStream(t, operation{method: http.MethodGet, path: path + "/aggregates", who: auth.Either, scopes: historians, id: "listAggregates", tag: "Usage", summary: "Read the billing figures",
		description: "Newest period first. Amounts are exact integers. A key with `events:read` alone reads them as of a position or a time. An operator's key that names no tenant gets the figures of all tenants in a `period`, by tenant, feature and subscription. " +
			"As CSV, by `Accept: text/csv` or `format=csv`, all figures are one answer.", problems: gone}, describeAggregates, s.aggregates)
	serveStream(t, operation{method: http.MethodGet, path: path, who: auth.Either, scopes: readers, id: "getSeries", tag: "Usage", summary: "Read a usage series",
		description: "The usage of a feature by the hour, the day or the month (UTC) of its own time, for charts. Without groupBy every bucket of the range has an entry, with zeros if it has no usage; with groupBy the groups with usage have one. " +
			"As CSV, by `Accept: text/csv` or `format=csv`, all buckets are one answer.", problems: gone}, describeSeries, s.series)
	serve(t, operation{method: http.MethodGet, path: path + "/aggregates/explain", who: auth.Either, scopes: historians, id: "explainAggregate", tag: "Usage", summary: "Read the events behind a figure",
		description: "In the order in which they were counted, with the running total. All pages together add up to the figure of the first page, also where more is counted meanwhile. " +
			"A page may hold fewer events than asked for, even none, and still have a nextCursor: it reads at most 10,000 verdicts of the figure, those of other subscriptions included.",
		problems: gone}, s.explain)
}

// readersOfUsage are the scopes of which one lets a key read the present usage.
func readersOfUsage() []string {
	return []string{commands.ScopeUsageRead, commands.ScopeBilling, commands.ScopeAudit}
}

type usageEventsRequest struct {
	OfTenant
	Freshness
	Between
	Paging
	Feature string `query:"feature"`
	Status  string `query:"status" enum:"PENDING,VALIDATED,AGGREGATED,REJECTED,DUPLICATE,DEAD_LETTERED" doc:"PENDING, VALIDATED, AGGREGATED, REJECTED or DEAD_LETTERED. DUPLICATE lists none: duplicates are answered, not stored."`
}

func (s *usageHandlers) listUsageEvents(ctx context.Context, in *usageEventsRequest) (*listed[audit.UsageEventRow], error) {
	viewer, tenant, err := s.subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	from, to, err := in.read()
	if err != nil {
		return nil, err
	}
	l := list{"usage events", tenant.String(), in.Feature, in.Status, in.From, in.To}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	wait, err := in.wait()
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Events.UsageEvents(ctx, viewer, audit.EventQuery{TenantID: tenant, Feature: in.Feature, Status: in.Status,
		From: from, To: to, Limit: in.Limit, After: after, Wait: wait})
	return &listed[audit.UsageEventRow]{listedFrom(l, found)}, err
}

type receiptRequest struct {
	OfTenant
	Freshness
	EventID string `path:"eventId" maxLength:"255"`
}

type receiptAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    audit.Receipt
}

func (s *usageHandlers) receipt(ctx context.Context, in *receiptRequest) (*receiptAnswer, error) {
	viewer, tenant, err := s.subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	wait, err := in.wait()
	if err != nil {
		return nil, err
	}
	if !isEventID(in.EventID) {
		return nil, query.ErrNotFound
	}
	r, err := s.Reads.Events.Receipt(ctx, viewer, tenant, in.EventID, wait)
	return &receiptAnswer{in.applied(), r}, err
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
	OfTenant
	Freshness
	Paging
}

func (s *usageHandlers) listConflicts(ctx context.Context, in *conflictsRequest) (*listed[audit.Conflict], error) {
	viewer, tenant, err := s.subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	l := list{"conflicts", tenant.String()}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	wait, err := in.wait()
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Events.Conflicts(ctx, viewer, tenant, in.Limit, after, wait)
	return &listed[audit.Conflict]{listedFrom(l, found)}, err
}
