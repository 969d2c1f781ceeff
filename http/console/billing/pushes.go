package billing

import (
	"net/url"

	"github.com/meterplex/meterplex/http/console"
)

const (
	pushesPath = console.Prefix + "/pushes"
	pushPath   = pushesPath + "/{pushId}"
)

func pushesPage() *console.Page {
	return &console.Page{Path: pushesPath, Title: "Stripe deliveries", Group: "Billing", Menu: "Stripe deliveries", Template: "pushes.html",
		Needs:  "GET /api/v1/pushes",
		Params: []string{"tenantId", "state", "periodKey", "cursor"},
		CLI: []string{"meterplex pushes list[ --tenant {tenantId}][ --state {state}][ --period {periodKey}]",
			"meterplex sagas list --kind billing_compare"},
		Load: func(v *console.Visit) (console.Doc, error) {
			found, err := v.Main(console.API("pushes"), console.Limited(50, v.Pick("tenantId", "state", "periodKey", "cursor")))
			if err != nil {
				return nil, err
			}
			comparisons, err := v.Try(console.API("sagas"), console.Limited(5, url.Values{"kind": {"billing_compare"}}))
			return console.Doc{"pushes": found, "comparisons": comparisons}, err
		},
		Actions: []*console.Action{{Name: "compare-pushes", Path: console.Prefix + "/new/comparison", Label: "Compare with the provider",
			Does: "POST /api/v1/pushes/reconcile",
			Warn: "A background process compares the provider's totals with the delivered amounts. A difference is an event."}}}
}

func pushPage() *console.Page {
	return &console.Page{Path: pushPath, Title: "Stripe delivery", Template: "push.html", Needs: "GET /api/v1/pushes/{pushId}",
		CLI: []string{"meterplex pushes show {pushId}"},
		Actions: []*console.Action{
			{Name: "retry-push", Path: pushPath + "/retry", Label: "Retry now", Does: "POST /api/v1/pushes/{pushId}/retry"},
			{Name: "resolve-push", Path: pushPath + "/resolve", Label: "Resolve", Does: "POST /api/v1/pushes/{pushId}/resolve",
				Warn: "Look the identifier up at the provider first. A wrong answer bills the amount twice, or not at all.",
				Fields: []console.Field{{Name: "delivered", Label: "The provider counts the amount", Kind: "select",
					Options: []string{"", "yes", "no"},
					Hint:    "yes: it is delivered, or billed in another way. no: it surely is not counted, and it is sent again."}},
				Adds: func(_ *console.Visit, f console.Form, body map[string]any) error {
					body["delivered"] = f.Get("delivered") == "yes"
					return nil
				}},
		}}
}
