// Package entitlements answers the operations of a tenant's entitlements: checks, consumptions, reservations and accounts.
package entitlements

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

func (s *handlers) entitlementOperations(t *api.Site) {
	const path = api.Prefix + "/entitlements"
	granted := []string{commands.ScopeEntitlementsRead}
	t.ServeRaw(api.Operation{Method: http.MethodGet, Path: path + "/{feature}/check", Who: auth.Tenant, Scopes: granted,
		Objective: auth.ObjectiveCheck, ID: "checkEntitlement", Tag: "Entitlements",
		Summary:     "May the tenant use an amount of a feature?",
		Description: "allowed is false, with a reason, if it may not. The ETag names the content, not the time: send it as If-None-Match."},
		describeCheck, s.check)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Tenant, Scopes: granted, ID: "listEntitlements",
		Tag: "Entitlements", Summary: "List the features that the tenant may use",
		Description: "One check of each feature of the subscription, with the amount used and the rest of the limit."}, s.entitlements)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/check", Who: auth.Tenant, Scopes: granted,
		Objective: auth.ObjectiveCheck, ID: "checkEntitlements", Tag: "Entitlements",
		Summary: "Check up to 100 features at once", Description: "Answered in the order of the question, from one snapshot."}, s.checks)
}

// check is a hot path: it parses parameters and encodes the answer by hand.
func (s *handlers) check(w http.ResponseWriter, r *http.Request) error {
	feature := api.PathValue(r, "feature")
	if refusal := domain.CheckFeatureKey(feature, ""); refusal != nil {
		return refusal
	}
	params, _ := url.ParseQuery(r.URL.RawQuery) // the guard has validated it
	amount := int64(1)
	if text := params.Get("amount"); text != "" {
		amount, _ = strconv.ParseInt(text, 10, 64)
	}
	freshness := api.Freshness{MinPosition: params.Get("minPosition"), Prefer: r.Header.Get("Prefer")}
	wait, err := freshness.Wait()
	if err != nil {
		return err
	}
	x := edge.ExchangeOf(r.Context())
	x.Uncounted = freshness.MinPosition != ""
	tenant := x.Caller.TenantID
	found, err := s.Reads.Entitlements.Check(r.Context(), query.Viewer{TenantID: tenant}, tenant, feature, amount, wait)
	if err != nil {
		return err
	}
	says := appendCheck(make([]byte, 0, 320), &found)
	tag := api.EntityTag(says)
	header := w.Header()
	header["Etag"] = []string{tag}
	header["Cache-Control"] = []string{"private, no-cache"}
	header["Vary"] = []string{"Authorization"}
	if applied := freshness.Applied(); applied != "" {
		header["Preference-Applied"] = []string{applied}
	}
	if api.Unchanged(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body := appendPosition(says, found.AsOf)
	header["Content-Type"] = []string{api.MediaJSON}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
	return nil
}

// appendCheck writes the same JSON as Check.MarshalJSON, without the position.
func appendCheck(dst []byte, c *entitlements.Check) []byte {
	dst = strconv.AppendBool(append(dst, `{"allowed":`...), c.Allowed)
	dst = api.AppendMember(dst, "feature", c.Feature)
	if c.Type != "" {
		dst = api.AppendMember(dst, "type", c.Type)
	}
	if c.Reason != "" {
		dst = api.AppendMember(dst, "reason", c.Reason)
	}
	if c.Type == "" || c.Type == domain.FeatureBoolean {
		return dst
	}
	dst = append(dst, `,"limit":`...)
	if c.Limit == nil {
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(dst, *c.Limit, 10)
	}
	dst = appendNumber(dst, "used", c.Used)
	dst = appendNumber(dst, "held", c.Held)
	dst = appendNumber(dst, "remaining", c.Remaining)
	dst = api.AppendMember(dst, "limitBehavior", c.LimitBehavior)
	if c.ResetAt == nil {
		return append(dst, `,"resetAt":null`...)
	}
	dst = append(dst, `,"resetAt":"`...)
	return append(c.ResetAt.UTC().AppendFormat(dst, time.RFC3339Nano), '"')
}

func appendNumber(dst []byte, name string, n *json.Number) []byte {
	dst = append(append(append(dst, ',', '"'), name...), '"', ':')
	if n == nil {
		return append(dst, "null"...)
	}
	return append(dst, *n...)
}

// appendPosition ends an answer with its position.
func appendPosition(dst []byte, p events.Position) []byte {
	dst = strconv.AppendInt(append(dst, `,"asOfPosition":"`...), int64(p.Partition), 10)
	dst = strconv.AppendInt(append(dst, '-'), p.Number, 10)
	return append(dst, '"', '}')
}

func describeCheck(op *huma.Operation, types api.Schemas) {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	op.Parameters = []*huma.Param{
		{Name: "feature", In: "path", Required: true, Schema: text()},
		{Name: "amount", In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: new(0.0),
			Maximum: new(float64(domain.MaxAmount)), Default: 1}},
		{Name: "If-None-Match", In: "header", Schema: text(), Description: "The ETag of an answer that is known."},
		{Name: "minPosition", In: "query", Schema: text(),
			Description: "The answer waits until every event recorded up to it is validated and counted, or rejected."},
		{Name: "Prefer", In: "header", Schema: text(), Description: "wait=N: wait up to N seconds (at most 30) for minPosition."},
	}
	op.Responses["200"] = &huma.Response{
		Description: "Whether the amount may be used, with the rest of the limit.",
		Headers:     map[string]*huma.Param{"ETag": {Schema: text()}, "Preference-Applied": {Schema: text()}},
		Content:     map[string]*huma.MediaType{api.MediaJSON: {Schema: types.Of(entitlements.Check{})}},
	}
	op.Responses["304"] = &huma.Response{Description: "The content that If-None-Match names is unchanged."}
}

type entitlementsAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    struct {
		Data       []entitlements.Check `json:"data" nullable:"false"`
		NextCursor *string              `json:"nextCursor" doc:"null on the last page."`
		AsOf       events.Position      `json:"asOfPosition"`
	} `nameHint:"Entitlements"`
}

type entitlementsRequest struct {
	api.Freshness
	api.Paging
}

func (s *handlers) entitlements(ctx context.Context, in *entitlementsRequest) (*entitlementsAnswer, error) {
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	tenant := edge.ExchangeOf(ctx).Caller.TenantID
	l := api.List{"entitlements", tenant.String()}
	_, after, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Entitlements.Entitlements(ctx, query.Viewer{TenantID: tenant}, tenant, wait)
	if err != nil {
		return nil, err
	}
	feature := func(c *entitlements.Check) string { return c.Feature }
	page := api.Cut(l, api.Behind(found.Data, after, feature), in.Limit, feature)
	answer := &entitlementsAnswer{Applied: in.Applied()}
	answer.Body.Data, answer.Body.NextCursor, answer.Body.AsOf = page.Data, page.NextCursor, found.AsOf
	return answer, nil
}

type checksRequest struct {
	api.Freshness
	Body struct {
		Features []question `json:"features" minItems:"1" maxItems:"100" nullable:"false"`
	} `nameHint:"Checks"`
}

type question struct {
	Feature api.LookupKey `json:"feature"`
	Amount  *int64        `json:"amount,omitempty" minimum:"0" maximum:"9007199254740991" default:"1"`
}

type checksAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    struct {
		Data []entitlements.Check `json:"data" nullable:"false"`
	} `nameHint:"CheckedEntitlements"`
}

func (s *handlers) checks(ctx context.Context, in *checksRequest) (*checksAnswer, error) {
	wait, err := in.Wait()
	if err != nil {
		return nil, err
	}
	questions := make([]entitlements.Question, len(in.Body.Features))
	for i, q := range in.Body.Features {
		if refusal := domain.CheckFeatureKey(string(q.Feature), "/features/"+strconv.Itoa(i)+"/feature"); refusal != nil {
			return nil, refusal
		}
		questions[i] = entitlements.Question{Feature: string(q.Feature), Amount: 1}
		if q.Amount != nil {
			questions[i].Amount = *q.Amount
		}
	}
	x := edge.ExchangeOf(ctx)
	x.Uncounted = in.MinPosition != ""
	tenant := x.Caller.TenantID
	found, err := s.Reads.Entitlements.Checks(ctx, query.Viewer{TenantID: tenant}, tenant, questions, wait)
	if err != nil {
		return nil, err
	}
	answer := &checksAnswer{Applied: in.Applied()}
	answer.Body.Data = found
	return answer, nil
}
