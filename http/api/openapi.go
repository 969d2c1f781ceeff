package api

import (
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/entitlements"
)

const about = `Meterplex meters usage: an event that is answered ` + "`accepted`" + ` is durable and counts once, however often it is sent.

Every answer carries ` + "`X-Request-Id`" + `. Errors are ` + "`application/problem+json`" + ` (RFC 9457) with a stable ` + "`code`" +
	`. Unknown
query parameters and unknown members are errors. Times are RFC 3339 with an offset, answered in UTC. A position, as in 17-4711,
is a place in the event log. Treat it as opaque: compare it, and send it back. Its number counts the events of all tenants of a
partition, so the distance between two of your own shows how many events others sent meanwhile, not who sent them. Lists are pages: send
` + "`nextCursor`" + ` back as ` + "`cursor`" + ` until it is null.

Amounts (` + "`x-amount`" + `) are exact integers, and sums may be above 2^53, which JavaScript's JSON.parse and others round. ` +
	"`Accept: application/json; amounts=string`" + `,
or ` + "`?amounts=string`" +
	`, gives all amounts of an answer as texts of digits. Payloads and metadata of events stay as they were recorded. Later releases may add
values to the lists in ` + "`x-extensible-enum`" + `: read others, too.`

// description returns the document without operations.
func description() *huma.OpenAPI {
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "Meterplex", Version: domain.Version, Description: about,
			Contact: &huma.Contact{Name: "The operator of this service"}, License: &huma.License{Name: "Apache License 2.0",
				Identifier: "Apache-2.0"}},
		Servers: []*huma.Server{{URL: "/"}},
		Tags: []*huma.Tag{
			{Name: "Usage", Description: "Send usage events and read their status."},
			{Name: "Event log", Description: "The history, for auditors: each tenant's events, in the order in which they were recorded."},
			{Name: "Entitlements", Description: "Features that a tenant may use, and the rest of its limits."},
			{Name: "Tenants", Description: "Tenants and their subscriptions."},
			{Name: "Keys", Description: "Keys of tenants and of operators. A secret is shown once."},
			{Name: "Features and plans", Description: "Features, and the plans that grant them."},
			{Name: "Dead letters", Description: "Failed events and their retries."},
			{Name: "Replays", Description: "Publishing or reading again, on purpose."},
			{Name: "Projections", Description: "Read models, their rebuilds, and the changes of a rebuild."},
			{Name: "Periods", Description: "Closing periods, their frozen figures, and adjustments of them."},
			{Name: "Pushes", Description: "Stripe deliveries: amounts of closed periods for the billing provider, and its customers."},
			{Name: "Webhooks", Description: "Endpoints of tenants that events are sent to, and their deliveries."},
			{Name: "Thresholds", Description: "Used amounts, or percentages of a limit, at which a tenant gets an event."},
			{Name: "Sagas", Description: "Background processes of several steps, such as the close of a period, and their retries."},
			{Name: "Outbox", Description: "The log on its way to the topics: the relay's progress, and records that the broker refused."},
			{Name: "Schemas", Description: "The JSON Schemas of the payloads of events, as the schemaUri of each event names them."},
			{Name: "System", Description: "Health, and the balance check of all accepted events."},
		},
		Components: &huma.Components{
			Schemas: newRegistry(),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				tenantScheme: {Type: "http", Scheme: "bearer", Description: "A tenant's key: mp_live_… or mp_test_…. It names the tenant.",
					Extensions: map[string]any{declaredScopes: commands.TenantMeanings()}},
				operatorScheme: {Type: "http", Scheme: "bearer", Description: "An operator's key: mp_op_….",
					Extensions: map[string]any{declaredScopes: commands.OperatorMeanings()}},
			},
		},
	}
}

// newRegistry returns a registry with schemas for types that reflection cannot describe.
func newRegistry() huma.Registry {
	r := huma.NewMapRegistry(SchemaPrefix, huma.DefaultSchemaNamer)
	r.RegisterTypeAlias(reflect.TypeFor[json.Number](), reflect.TypeFor[exactInteger]())
	r.RegisterTypeAlias(reflect.TypeFor[big.Int](), reflect.TypeFor[exactInteger]())
	r.RegisterTypeAlias(reflect.TypeFor[uuid.UUID](), reflect.TypeFor[id]())
	r.RegisterTypeAlias(reflect.TypeFor[events.Position](), reflect.TypeFor[position]())
	r.RegisterTypeAlias(reflect.TypeFor[entitlements.Check](), reflect.TypeFor[entitlementCheck]())
	return r
}

// exactInteger, id and position are the schemas of json.Number and big.Int (an integer of any size),
// uuid.UUID and events.Position.
type (
	exactInteger struct{}
	id           struct{}
	position     struct{}
)

// Schema implements huma.SchemaProvider.
func (exactInteger) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

// Schema implements huma.SchemaProvider.
func (id) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "uuid"}
}

// Schema implements huma.SchemaProvider.
func (position) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: "^[0-9]{1,2}-[0-9]+$", Examples: []any{"17-4711"}}
}

// SchemaPrefix is the prefix of schema references.
const SchemaPrefix = "#/components/schemas/"

// describe declares an operation and builds huma's: its security from who may call it, its
// problems from the kind of route.
func (t *Site) describe(o Operation) huma.Operation {
	route := t.declare(o)
	op := huma.Operation{
		Method: o.Method, Path: o.Path, OperationID: o.ID, Summary: o.Summary, Description: o.Description,
		Tags: []string{o.Tag}, DefaultStatus: o.Status, Responses: map[string]*huma.Response{},
	}
	statuses := append([]int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable}, o.Problems...)
	if route.Who != auth.Public && route.Who != auth.Operator {
		statuses = append(statuses, http.StatusTooManyRequests) // the tenant's share
	}
	if route.Who != auth.Public {
		accepted, scopes := security(route)
		if op.Security = accepted; scopes != nil {
			op.Extensions = map[string]any{requiredScopes: scopes}
		}
		statuses = append(statuses, http.StatusUnauthorized, http.StatusForbidden)
	} else {
		op.Security = []map[string][]string{}
	}
	if o.Method != http.MethodGet && o.Method != http.MethodDelete {
		statuses = append(statuses, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	if o.Reasoned {
		op.Parameters = append(op.Parameters, &huma.Param{Name: edge.HeaderReason, In: "header",
			Schema: &huma.Schema{Type: huma.TypeString}, Example: "ordered%20by%20mail",
			Description: "The reason of the change, which its event holds: 1 to 500 characters in UTF-8, percent-encoded."})
	}
	described := Schemas{t.API.OpenAPI().Components.Schemas}.Of(problem.Problem{})
	for _, status := range statuses {
		op.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status), Headers: refusalHeaders(status),
			Content: map[string]*huma.MediaType{problem.MediaType: {Schema: described}},
		}
	}
	return op
}

// refusalHeaders documents the headers that tell a client how to react to a status.
func refusalHeaders(status int) map[string]*huma.Param {
	switch status {
	case http.StatusUnauthorized:
		return map[string]*huma.Param{"WWW-Authenticate": {Schema: &huma.Schema{Type: huma.TypeString}, Description: "How a key is sent."}}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return map[string]*huma.Param{"Retry-After": {Schema: &huma.Schema{Type: huma.TypeInteger},
			Description: "Seconds after which the same request may be sent again."}}
	}
	return nil
}

// tidy removes the schemas that huma adds for its own errors, and allows unknown members
// in answers: only request bodies are closed.
func tidy(api *huma.OpenAPI) {
	all := api.Components.Schemas.Map()
	delete(all, "ErrorModel")
	delete(all, "ErrorDetail")
	read, shaped := map[string]bool{}, map[string]bool{}
	for _, op := range OperationsOf(api) {
		if op.RequestBody == nil {
			continue
		}
		for _, media := range op.RequestBody.Content {
			item, _ := media.Extensions[ItemSchema].(*huma.Schema)
			markRead(api.Components.Schemas, item, read)
			markRead(api.Components.Schemas, media.Schema, read)
			if op.SkipValidateBody {
				markRead(api.Components.Schemas, media.Schema, shaped)
			}
		}
	}
	for name, schema := range all {
		if !read[name] && schema.Type == huma.TypeObject {
			schema.AdditionalProperties = nil
			openLists(schema)
		}
		for _, member := range schema.Properties {
			if member.Type == huma.TypeArray {
				member.Nullable = false // an empty list is encoded as []
			}
		}
		if shaped[name] {
			optionalOrNull(schema)
		}
	}
	describeCodes(all)
	orNull(all["Receipt"], "published", "validated", "rejected", "aggregated", "corrects", "late", "frozen")
	orNull(all["RecordedStep"], "correlationId")
	orNull(all["ProjectionStatus"], "lastRebuild")
	orNull(all["RebuildStatus"], "progress", "tenantId")
	orNull(all["GenerationStatus"], "tenantId")
	orNull(all["ScopedGeneration"], "tenantId")
	orNull(all["WithheldRecord"], "deadLetterId")
	orNull(all["DiffBody"], "totals", "conservation")
	orNull(all["Charge"], "price")
	orNull(all["Installation"], "identity")
	orNull(all["Attention"], "tenantId")
}

// describeCodes lists the codes that each member named code can hold, from the table of codes.
func describeCodes(all map[string]*huma.Schema) {
	for name, schema := range all {
		code := schema.Properties["code"]
		if code == nil {
			continue
		}
		members := codes.Event | codes.DeadLetter
		switch name {
		case "Problem":
			members = codes.Request
		case "Fault", "BulkRefusal":
			members = codes.Request | codes.Item
		case "EventVerdict":
			members = codes.Event
		}
		if code.Description == "" {
			code.Description = "Stable; /docs#problems explains each."
		}
		code.Enum, code.Extensions = nil, map[string]any{extensibleEnum: codes.In(members)}
	}
}

// extensibleEnum lists the present values of a member of an answer. Later releases may add values, which a
// generated client would refuse if enum listed them.
const extensibleEnum = "x-extensible-enum"

// openLists documents the values of members of an answer as open lists.
func openLists(schema *huma.Schema) {
	for _, member := range schema.Properties {
		for _, s := range []*huma.Schema{member, member.Items} {
			if s != nil && len(s.Enum) > 0 {
				s.Extensions = map[string]any{extensibleEnum: s.Enum}
				s.Enum = nil
			}
		}
	}
}

// content is the content of a body in a fixed order: generators take the first media type as the default.
type content map[string]*huma.MediaType

// MarshalJSON writes application/json first.
func (c content) MarshalJSON() ([]byte, error) {
	names := slices.Sorted(maps.Keys(c))
	if at := slices.Index(names, MediaJSON); at > 0 {
		names = slices.Insert(slices.Delete(names, at, at+1), 0, MediaJSON)
	}
	out := []byte{'{'}
	for i, name := range names {
		media, err := json.Marshal(c[name])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(strconv.AppendQuote(out, name), ':'), media...)
	}
	return append(out, '}'), nil
}

// jsonFirst makes application/json the first media type of each body with several.
func jsonFirst(api *huma.OpenAPI) {
	for _, op := range OperationsOf(api) {
		if op.RequestBody != nil && len(op.RequestBody.Content) > 1 {
			op.RequestBody.Extensions = map[string]any{"content": content(op.RequestBody.Content)}
		}
	}
}

// optionalOrNull documents that optional members of a body may be null: shape treats null
// as absent.
func optionalOrNull(schema *huma.Schema) {
	for name, member := range schema.Properties {
		if member.Ref != "" || slices.Contains(schema.Required, name) {
			continue
		}
		if member.Nullable = true; len(member.Enum) > 0 {
			member.Enum = append(slices.Clone(member.Enum), nil)
		}
	}
}

// orNull marks members as nullable if their Go type, in another package, cannot express
// it.
func orNull(schema *huma.Schema, members ...string) {
	if schema == nil {
		return
	}
	for _, name := range members {
		schema.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{schema.Properties[name], {Type: "null"}}}
	}
}

func markRead(registry huma.Registry, s *huma.Schema, read map[string]bool) {
	if s == nil {
		return
	}
	if s.Ref != "" {
		name := s.Ref[len(SchemaPrefix):]
		if !read[name] {
			read[name] = true
			markRead(registry, registry.SchemaFromRef(s.Ref), read)
		}
		return
	}
	markRead(registry, s.Items, read)
	for _, property := range s.Properties {
		markRead(registry, property, read)
	}
}

// entitlementCheck documents entitlements.Check, the answer about one feature. A BOOLEAN
// feature has no figures; a feature that is not granted has only a reason.
type entitlementCheck struct {
	Allowed       bool            `json:"allowed"`
	Feature       string          `json:"feature"`
	Type          string          `json:"type,omitempty" enum:"BOOLEAN,QUOTA,METERED"`
	Reason        string          `json:"reason,omitempty" enum:"no_active_subscription,feature_not_found,not_entitled,quota_exceeded"`
	Limit         *int64          `json:"limit,omitempty" nullable:"true" doc:"null: no limit."`
	Used          *json.Number    `json:"used,omitempty" nullable:"true"`
	Held          *json.Number    `json:"held,omitempty" nullable:"true"`
	Remaining     *json.Number    `json:"remaining,omitempty" nullable:"true" doc:"null: no limit."`
	LimitBehavior string          `json:"limitBehavior,omitempty" enum:"HARD,SOFT"`
	ResetAt       *time.Time      `json:"resetAt,omitempty" nullable:"true" doc:"null if the period never resets."`
	AsOf          events.Position `json:"asOfPosition" doc:"Every event recorded up to here is in the answer."`
}
