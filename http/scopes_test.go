package http_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/internal/must"
)

// accessRule holds the callers that may read or change a noun of the API.
type accessRule struct {
	who            auth.Who
	reads, changes string // scopes, of which a key needs one; "" allows no key
}

func accessRules() map[string]accessRule {
	const operators = "billing audit"
	return map[string]accessRule{
		"usage":         {auth.Either, "usage:read billing audit", "usage:write"},
		"aggregates":    {auth.Either, "usage:read billing audit events:read", ""}, // events:read: as of a position
		"events":        {auth.Either, "events:read audit", ""},
		"entitlements":  {auth.Tenant, "entitlements:read", "entitlements:reserve"},
		"reservations":  {auth.Either, "entitlements:read entitlements:reserve billing audit", "entitlements:reserve"},
		"dead-letters":  {auth.Operator, operators, "billing"},
		"projections":   {auth.Operator, operators, "billing"},
		"rebuilds":      {auth.Operator, operators, "billing"},
		"sagas":         {auth.Operator, operators, "billing"},
		"offboard":      {auth.Operator, operators, "billing"},
		"erasures":      {auth.Operator, "admin audit", "admin"},
		"pushes":        {auth.Operator, operators, "billing"},
		"billing":       {auth.Operator, operators, "billing"},
		"replays":       {auth.Operator, "admin", "admin"},
		"periods":       {auth.Operator, operators, "billing"},
		"adjustments":   {auth.Operator, operators, "billing"},
		"tenants":       {auth.Operator, "admin", "admin"},
		"operator-keys": {auth.Operator, "admin", "admin"},
		"features":      {auth.Operator, "admin", "admin"},
		"plans":         {auth.Operator, "admin", "admin"},
		"prices":        {auth.Operator, "admin", "admin"},
		"evaluate":      {auth.Operator, operators, ""},
		"webhooks":      {auth.Either, "webhooks:manage billing audit", "webhooks:manage billing"}, // operators change them too
		"thresholds":    {auth.Either, "webhooks:manage billing audit", "webhooks:manage billing"},
		"outbox":        {auth.Operator, "billing audit admin", ""},
		"quota":         {auth.Operator, "billing audit", "billing"},
		"schemas":       {auth.AnyKey, "", ""}, // the same in every deployment
		"system":        {auth.Operator, "billing audit admin", ""},
	}
}

// postedReads are the routes that only read although their method is POST.
func postedReads() []string { return []string{"entitlements/check", "prices/evaluate"} }

// TestP9_ScopesOfEveryRoute compares the route table with the duty of each noun. The other
// tests derive the keys to refuse from the table, so they cannot find a superfluous scope
// in it.
func TestP9_ScopesOfEveryRoute(t *testing.T) {
	seen := map[string]bool{}
	for _, route := range http.Routes() {
		path, api := strings.CutPrefix(route.Path, "/api/v1/")
		if !api || route.Who == auth.Public {
			if api || route.Who != auth.Public {
				t.Errorf("%s %s: within the API everything takes a key, outside of it nothing does", route.Method, route.Path)
			}
			continue
		}
		noun, _, _ := strings.Cut(path, "/")
		if strings.Contains(path, "/reservations") {
			noun = "reservations"
		}
		if strings.HasPrefix(path, "usage/aggregates") {
			noun = "aggregates"
		}
		if path == "prices/evaluate" { // shows charges
			noun = "evaluate"
		}
		if strings.Contains(path, "/offboard") {
			noun = "offboard"
		}
		if strings.HasSuffix(path, "/erase") {
			noun = "erasures"
		}
		if strings.HasSuffix(path, "/billing") {
			noun = "billing"
		}
		if strings.Contains(path, "/periods") {
			noun = "periods"
		}
		if strings.Contains(path, "/webhooks") || noun == "deliveries" {
			noun = "webhooks"
		}
		if strings.Contains(path, "/thresholds") {
			noun = "thresholds"
		}
		is, known := accessRules()[noun]
		if !known {
			t.Errorf("%s %s: who may read and change %s?", route.Method, route.Path, noun)
			continue
		}
		seen[noun] = true
		who, scopes := is.who, is.reads
		if route.Method != "GET" && !slices.Contains(postedReads(), path) {
			scopes = is.changes
			if who == auth.Either && noun != "webhooks" && noun != "thresholds" { // operators do not send usage
				who = auth.Tenant
			}
		}
		if got := strings.Join(route.Scopes, " "); route.Who != who || !slices.Equal(slices.Sorted(strings.FieldsSeq(got)),
			slices.Sorted(strings.FieldsSeq(scopes))) {
			t.Errorf("%s %s takes %s keys with one of %q; it is for %s keys with one of %q", route.Method, route.Path, route.Who, got, who,
				scopes)
		}
	}
	if len(seen) != len(accessRules()) {
		t.Errorf("of %d nouns only %d have a route", len(accessRules()), len(seen))
	}
}

func TestEachScopeIsInItsDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/scopes.md")
	must.OK(t, err)
	for _, scope := range slices.Concat(commands.TenantScopes(), commands.OperatorScopes()) {
		if !strings.Contains(string(text), "\n| `"+scope+"` | ") {
			t.Errorf("docs/reference/scopes.md has no row of %s", scope)
		}
	}
}
