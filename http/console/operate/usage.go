package operate

import (
	"cmp"
	"math/big"
	"net/http"
	"net/url"
	"slices"

	"github.com/meterplex/meterplex/http/console"
)

// Bounds of the usage on the overview.
const (
	figuresRead  = 1000 // of the month; above it no sums are shown
	topTenants   = 5
	pricesShown  = 5
	featuresKept = 8
)

// sum is the usage of a tenant, or of a feature, in the month.
type sum struct {
	Of      string // the tenant or the feature
	Tenants int
	Events  *big.Int
	Amount  *big.Int // of one feature: other units do not add up
	last    string   // the tenant added last; figures come by tenant
}

// usageOf reads the usage of all tenants in the present month, and its charges by price. It has no sums if there are more figures than one
// read holds.
func usageOf(v *console.Visit) (console.Doc, error) {
	month := v.Now().UTC().Format("2006-01")
	d, err := v.Try(console.API("usage", "aggregates"), console.Limited(figuresRead, url.Values{"period": {month}}))
	if err != nil {
		return nil, err
	}
	d["month"] = month
	if d["problem"] == nil && d["nextCursor"] == nil {
		sumUp(d)
	}
	d["charges"], d["morePrices"], err = chargesOf(v, month)
	return d, err
}

// sumUp adds the sums of events, of each feature, and of the tenants with most events.
func sumUp(d console.Doc) {
	features, tenants := map[string]*sum{}, map[string]*sum{}
	all := big.NewInt(0)
	for _, entry := range console.Items(d["data"]) {
		figure := console.Object(entry)
		tenant := console.Text(figure["tenantId"])
		all.Add(all, console.Integer(figure["eventCount"]))
		add(features, console.Text(figure["feature"]), tenant, figure)
		add(tenants, tenant, tenant, figure)
	}
	d["events"], d["tenants"] = all.String(), len(tenants)
	d["features"], d["top"] = most(features, featuresKept), most(tenants, topTenants)
}

func add(to map[string]*sum, key, tenant string, figure console.Doc) {
	s := to[key]
	if s == nil {
		s = &sum{Of: key, Events: new(big.Int), Amount: new(big.Int)}
		to[key] = s
	}
	if s.last != tenant {
		s.last, s.Tenants = tenant, s.Tenants+1
	}
	s.Events.Add(s.Events, console.Integer(figure["eventCount"]))
	s.Amount.Add(s.Amount, console.Integer(figure["amount"]))
}

// most returns the sums with most events.
func most(sums map[string]*sum, n int) []*sum {
	var all []*sum
	for _, s := range sums {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *sum) int { return cmp.Or(b.Events.Cmp(a.Events), cmp.Compare(a.Of, b.Of)) })
	return all[:min(n, len(all))]
}

// chargesOf reads the charges of the month so far by each of the first prices.
func chargesOf(v *console.Visit, month string) (charges []any, more bool, err error) {
	prices, err := console.Tried(v.Do(console.Request{Method: http.MethodGet, Path: console.API("prices"),
		Query: console.Limited(pricesShown, nil)}))
	if err != nil || prices["problem"] != nil {
		return nil, false, err
	}
	for _, entry := range console.Items(prices["data"]) {
		price := console.Object(entry)
		costs, err := console.Tried(v.Do(console.Request{Method: http.MethodPost, Path: console.API("prices", "evaluate"),
			Query: console.Limited(1, nil), Body: map[string]any{"periodKey": month, "priceKey": console.Text(price["key"])}}))
		if err != nil {
			return nil, false, err
		}
		charges = append(charges, map[string]any{"price": entry, "totals": costs["totals"]})
	}
	return charges, prices["nextCursor"] != nil, nil
}
