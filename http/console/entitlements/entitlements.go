// Package entitlements has the pages of accounts and reservations.
package entitlements

import (
	"net/url"

	"github.com/meterplex/meterplex/http/console"
)

const (
	entitlementsPath = console.Prefix + "/entitlements"
	comparisonPath   = console.Prefix + "/entitlements/comparison"
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		entitlementsPage(),
		comparisonPage(),
		reservationsPage(),
	}
}

// readers are the scopes of operators that read accounts and reservations.
func readers() []string { return []string{"billing", "audit"} }

func entitlementsPage() *console.Page {
	return &console.Page{Path: entitlementsPath, Title: "Entitlements", Group: "Customers", Menu: "Entitlements",
		Template: "entitlements.html", Needs: "GET /api/v1/quota/accounts", Who: console.Either,
		Scopes: append(readers(), "entitlements:read"), Params: []string{"tenantId", "feature", "periodKey", "cursor"},
		CLI:       []string{"meterplex entitlements accounts --tenant {tenantId}[ --feature {feature}][ --period {periodKey}]"},
		TenantCLI: []string{"meterplex entitlements list"},
		Load: func(v *console.Visit) (console.Doc, error) {
			if v.Tenant != nil {
				checks, err := v.Get(console.API("entitlements"), console.Limited(100, v.Pick("cursor")))
				return console.Doc{"checks": checks}, err
			}
			if v.Query.Get("tenantId") == "" {
				return v.Choice()
			}
			accounts, err := Accounts(v, v.Query.Get("tenantId"), console.Limited(100, v.Pick("feature", "periodKey", "cursor")))
			return console.Doc{"accounts": accounts}, err
		}}
}

// Accounts reads the accounts of a tenant, each with the end of its period.
func Accounts(v *console.Visit, tenant string, query url.Values) (console.Doc, error) {
	query.Set("tenantId", tenant)
	accounts, err := v.Main(console.API("quota", "accounts"), query)
	if err != nil || accounts["problem"] != nil {
		return accounts, err
	}
	periods, err := v.Try(console.API("tenants", tenant, "periods"), console.Limited(100, nil))
	if err != nil {
		return nil, err
	}
	ends := map[string]any{}
	for _, entry := range console.Items(periods["data"]) {
		period := console.Object(entry)
		ends[console.Text(period["periodKey"])] = period["periodEnd"]
	}
	for _, entry := range console.Items(accounts["data"]) {
		account := console.Object(entry)
		account["resetAt"] = ends[console.Text(account["periodKey"])]
	}
	if head := console.Text(accounts["headPosition"]); head != "" {
		v.TrueAt(head)
	}
	return accounts, nil
}

// comparisonPage compares the accounts of a tenant with its log. Only the action changes them.
func comparisonPage() *console.Page {
	const path = comparisonPath
	return &console.Page{Path: path, Title: "Comparison of accounts", Template: "comparison.html",
		Needs:  "POST /api/v1/quota/accounts/reconcile",
		Params: []string{"tenantId"}, CLI: []string{"meterplex entitlements reconcile --tenant {tenantId}"},
		Load: func(v *console.Visit) (console.Doc, error) {
			tenant := v.Query.Get("tenantId")
			if tenant == "" {
				return v.Choice()
			}
			found, err := v.Preview(console.API("quota", "accounts", "reconcile"), nil, map[string]any{"tenantId": tenant})
			if err == nil {
				v.TrueAt(console.Text(found["headPosition"]))
			}
			return console.Doc{"found": found}, err
		},
		Actions: []*console.Action{{Name: "repair-accounts", Path: path + "/{tenantId}/repair", Label: "Set the accounts to the log",
			Does: "POST /api/v1/quota/accounts/reconcile",
			Warn: "Each account that differs is set to the log by an event. Find out first which program changed the rows.",
			Sets: map[string]any{"repair": true},
			Adds: func(v *console.Visit, _ console.Form, body map[string]any) error {
				body["tenantId"] = v.Param("tenantId")
				return nil
			}}}}
}
