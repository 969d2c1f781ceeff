package console

import (
	"net/http"
	"net/url"
)

const (
	pushesPath = Prefix + "/pushes"
	pushPath   = pushesPath + "/{pushId}"
)

func pushesPage() *page {
	return &page{path: pushesPath, title: "Pushes", menu: "Pushes", template: "pushes.html", needs: "GET /api/v1/pushes", who: operator, scopes: readers(),
		params: []string{"tenantId", "state", "periodKey", "cursor"},
		cli:    []string{"meterplex pushes list[ --tenant {tenantId}][ --state {state}][ --period {periodKey}]", "meterplex sagas list --kind billing_compare"},
		load: func(v *visit) (doc, error) {
			found, err := v.main(api("pushes"), limited(50, v.pick("tenantId", "state", "periodKey", "cursor")))
			if err != nil {
				return nil, err
			}
			comparisons, err := v.try(api("sagas"), limited(5, url.Values{"kind": {"billing_compare"}}))
			return doc{"pushes": found, "comparisons": comparisons}, err
		},
		actions: []*action{{name: "compare-pushes", path: Prefix + "/new/comparison", label: "Compare with the provider", who: operator, scopes: billing(), bare: true,
			warn: "A saga compares the provider's totals with the delivered amounts. A difference is an event.",
			request: func(*visit, form) (request, error) {
				return request{Method: http.MethodPost, Path: api("pushes", "reconcile")}, nil
			}}}}
}

func pushPage() *page {
	post := func(v *visit, verb string, body map[string]any) request {
		return request{Method: http.MethodPost, Path: api("pushes", v.param("pushId"), verb), Body: body}
	}
	return &page{path: pushPath, title: "Push", template: "push.html", needs: "GET /api/v1/pushes/{pushId}", who: operator, scopes: readers(),
		cli: []string{"meterplex pushes show {pushId}"},
		actions: []*action{
			{name: "retry-push", path: pushPath + "/retry", label: "Retry now", who: operator, scopes: billing(),
				request: func(v *visit, _ form) (request, error) { return post(v, "retry", nil), nil }},
			{name: "resolve-push", path: pushPath + "/resolve", label: "Resolve", who: operator, scopes: billing(),
				warn: "Look the identifier up at the provider first. A wrong answer bills the amount twice, or not at all.",
				fields: []field{{name: "delivered", label: "The provider counts the amount", kind: "select", options: []string{"", "yes", "no"},
					hint: "yes: it is delivered, or billed in another way. no: it surely is not counted, and it is sent again."}},
				request: func(v *visit, f form) (request, error) {
					return post(v, "resolve", map[string]any{"delivered": f.get("delivered") == "yes"}), nil
				}},
		}}
}
