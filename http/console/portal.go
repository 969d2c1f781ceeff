package console

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// portalPath is the page of a link for a tenant's people. It has no session, no form and no script of its own: a site that embeds it
// gets no cookie.
const portalPath = commands.PortalPath + "{link}"

// portalParams are the parameters of the page. Its tenant is that of the link.
func portalParams() []string { return []string{"feature"} }

// portalDays is the range of the series on the page.
const portalDays = 30

// portal shows the usage, the limits and the figures of the tenant whose key the link holds.
func (c *Console) portal(w http.ResponseWriter, r *http.Request) error {
	if len(c.Frames) > 0 {
		w.Header().Set("Content-Security-Policy", strings.Replace(policy, "frame-ancestors 'none'",
			"frame-ancestors "+strings.Join(c.Frames, " "), 1))
	}
	holder, err := c.holderOf(r)
	if err != nil {
		return err
	}
	edge.ExchangeOf(r.Context()).Keep(holder.caller.TenantID)
	v := &Visit{c: c, r: r, w: w, visitor: holder, Query: url.Values{}}
	if err := v.read(r.URL.RawQuery, portalParams()); err != nil {
		return err
	}
	data, err := portalData(v)
	if err != nil {
		return err
	}
	data["ends"] = holder.caller.Admission.Until.Format(time.RFC3339)
	c.write(w, r, http.StatusOK, "portal.html", &view{c: c, r: r, v: v, Title: holder.Tenant.Name, Data: data, open: true})
	return nil
}

// holderOf returns the holder of the key of a link. A key that may write, or that has no end, opens no page by its address.
func (c *Console) holderOf(r *http.Request) (*visitor, error) {
	gone := problem.New("not_found", "The link is not valid, or it has expired. Ask for another one")
	hash, ok := auth.HashOfSecret("mp_" + r.PathValue("link"))
	if !ok {
		return nil, gone
	}
	caller, tenant, err := c.Keys.Identify(r.Context(), hash)
	if refused := (*domain.Error)(nil); errors.As(err, &refused) {
		return nil, gone
	}
	if err != nil {
		return nil, err
	}
	if tenant == nil || caller.Admission.Until == nil || !slices.Equal(caller.Scopes, commands.PortalScopes()) {
		return nil, gone
	}
	return &visitor{keyHash: hash, caller: caller, Tenant: tenant}, nil
}

// portalData reads limits, figures and the series of one feature: that of the address, else the first one with a figure.
func portalData(v *Visit) (Doc, error) {
	data, err := v.All(map[string]Section{
		"limits":  {Path: API("entitlements"), Query: Limited(100, nil)},
		"figures": {Path: API("usage", "aggregates"), Query: Limited(50, nil)},
	})
	if err != nil {
		return nil, err
	}
	figures := Items(data["figures"].(Doc)["data"])
	if v.Query.Get("feature") == "" && len(figures) == 0 {
		return data, nil
	}
	feature := v.Query.Get("feature")
	if len(figures) > 0 {
		feature = cmp.Or(feature, Text(Member(figures[0], "feature")))
	}
	to := v.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	data["feature"] = feature
	data["series"], err = v.Try(API("usage"), url.Values{"feature": {feature}, "granularity": {"day"},
		"from": {to.AddDate(0, 0, -portalDays).Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}})
	return data, err
}
