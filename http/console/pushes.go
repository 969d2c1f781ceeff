package console

import "net/url"

const (
	pushesPath = Prefix + "/pushes"
	pushPath   = pushesPath + "/{pushId}"
)

func pushesPage() *page {
	return &page{path: pushesPath, title: "Pushes", menu: "Pushes", template: "pushes.html", needs: "GET /api/v1/pushes",
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
		actions: []*action{{name: "compare-pushes", path: Prefix + "/new/comparison", label: "Compare with the provider", does: "POST /api/v1/pushes/reconcile",
			warn: "A saga compares the provider's totals with the delivered amounts. A difference is an event."}}}
}

func pushPage() *page {
	return &page{path: pushPath, title: "Push", template: "push.html", needs: "GET /api/v1/pushes/{pushId}",
		cli: []string{"meterplex pushes show {pushId}"},
		actions: []*action{
			{name: "retry-push", path: pushPath + "/retry", label: "Retry now", does: "POST /api/v1/pushes/{pushId}/retry"},
			{name: "resolve-push", path: pushPath + "/resolve", label: "Resolve", does: "POST /api/v1/pushes/{pushId}/resolve",
				warn: "Look the identifier up at the provider first. A wrong answer bills the amount twice, or not at all.",
				fields: []field{{name: "delivered", label: "The provider counts the amount", kind: "select", options: []string{"", "yes", "no"},
					hint: "yes: it is delivered, or billed in another way. no: it surely is not counted, and it is sent again."}},
				adds: func(_ *visit, f form, body map[string]any) error {
					body["delivered"] = f.get("delivered") == "yes"
					return nil
				}},
		}}
}
