package console

import (
	"net/url"
)

const (
	entitlementsPath = Prefix + "/entitlements"
	comparisonPath   = Prefix + "/entitlements/comparison"
)

// readers are the scopes of operators that read accounts and reservations.
func readers() []string { return []string{"billing", "audit"} }

func entitlementsPage() *page {
	return &page{path: entitlementsPath, title: "Entitlements", menu: "Entitlements", template: "entitlements.html", needs: "GET /api/v1/quota/accounts", who: either,
		scopes: append(readers(), "entitlements:read"), params: []string{"tenantId", "feature", "periodKey", "cursor"},
		cli:       []string{"meterplex entitlements accounts --tenant-id {tenantId}[ --feature {feature}][ --period {periodKey}]"},
		tenantCLI: []string{"meterplex entitlements list"},
		load: func(v *visit) (doc, error) {
			if v.tenant != nil {
				checks, err := v.get(api("entitlements"), limited(100, v.pick("cursor")))
				return doc{"checks": checks}, err
			}
			if v.query.Get("tenantId") == "" {
				return v.choice()
			}
			accounts, err := v.accounts(v.query.Get("tenantId"), limited(100, v.pick("feature", "periodKey", "cursor")))
			return doc{"accounts": accounts}, err
		}}
}

// choice lists tenants, one of which the page needs.
func (v *visit) choice() (doc, error) {
	tenants, err := v.try(api("tenants"), limited(50, nil))
	return doc{"tenants": tenants}, err
}

// limited returns a query with the size of a page of the list.
func limited(size int, query url.Values) url.Values {
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", text(size))
	return query
}

// accounts reads the accounts of a tenant, each with the end of its period.
func (v *visit) accounts(tenant string, query url.Values) (doc, error) {
	query.Set("tenantId", tenant)
	accounts, err := v.main(api("quota", "accounts"), query)
	if err != nil || accounts["problem"] != nil {
		return accounts, err
	}
	periods, err := v.try(api("tenants", tenant, "periods"), limited(100, nil))
	if err != nil {
		return nil, err
	}
	ends := map[string]any{}
	for _, entry := range items(periods["data"]) {
		period := object(entry)
		ends[text(period["periodKey"])] = period["periodEnd"]
	}
	for _, entry := range items(accounts["data"]) {
		account := object(entry)
		account["resetAt"] = ends[text(account["periodKey"])]
	}
	if head := text(accounts["headPosition"]); head != "" {
		v.positions = append(v.positions, head)
	}
	return accounts, nil
}

// object returns an entry of a list.
func object(entry any) doc {
	o, _ := entry.(map[string]any)
	return o
}

// comparisonPage compares the accounts of a tenant with its log. Nothing changes without the action.
func comparisonPage() *page {
	const path = comparisonPath
	return &page{path: path, title: "Comparison of accounts", template: "comparison.html", needs: "POST /api/v1/quota/accounts/reconcile",
		params: []string{"tenantId"}, cli: []string{"meterplex entitlements reconcile --tenant-id {tenantId}"},
		load: func(v *visit) (doc, error) {
			tenant := v.query.Get("tenantId")
			if tenant == "" {
				return v.choice()
			}
			found, err := v.preview(api("quota", "accounts", "reconcile"), map[string]any{"tenantId": tenant})
			if err == nil {
				v.positions = append(v.positions, text(found["headPosition"]))
			}
			return doc{"found": found}, err
		},
		actions: []*action{{name: "repair-accounts", path: path + "/{tenantId}/repair", label: "Set the accounts to the log", does: "POST /api/v1/quota/accounts/reconcile",
			warn: "Each account that differs is set to the log by an event. Find out first which program changed the rows.",
			sets: map[string]any{"repair": true},
			adds: func(v *visit, _ form, body map[string]any) error {
				body["tenantId"] = v.param("tenantId")
				return nil
			}}}}
}
