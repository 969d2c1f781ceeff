// Package auth decides which callers may use a route, and finds the caller of a request by its key.
package auth

import "fmt"

// Who is the kind of caller that may use a route.
type Who string

// Public routes need no key; the others name the kind of key that they accept, and its scopes.
const (
	Public   Who = "public"
	Tenant   Who = "tenant"
	Operator Who = "operator"
	Either   Who = "either"
	// AnyKey needs a valid key of either kind, and no scope: the data of the route belong to no tenant.
	AnyKey Who = "any"
)

// Route holds the requirements of one operation. A key needs one of the scopes, if there are any;
// admin includes the other operator scopes.
type Route struct {
	Method, Path string
	Who          Who
	Scopes       []string
	Ingest       bool // ingest has its own limit of requests in flight
	// Objective is the SLO that the answers count for; "" counts for no SLO.
	Objective string
	// Reasoned is set if the change's event holds the reason of the header Meterplex-Reason.
	Reasoned bool
	// Session is set if the session of a browser names the key: the console checks it, and the edge does not.
	Session bool
}

// Objectives of answers.
const (
	ObjectiveIngest = "ingest"
	ObjectiveCheck  = "check"
)

// Objectives lists them.
func Objectives() []string { return []string{ObjectiveIngest, ObjectiveCheck} }

// Name is the method and the path.
func (r *Route) Name() string { return r.Method + " " + r.Path }

// Check refuses a route without a kind of caller.
func (r *Route) Check() error {
	switch r.Who {
	case Public, AnyKey:
		if len(r.Scopes) > 0 {
			return fmt.Errorf("the operation %s is %s and names scopes", r.Name(),
				map[Who]string{Public: "public", AnyKey: "for any key"}[r.Who])
		}
	case Tenant, Operator, Either:
		if len(r.Scopes) == 0 {
			return fmt.Errorf("the operation %s takes %s keys and names no scope", r.Name(), r.Who)
		}
	default:
		return fmt.Errorf("the operation %s does not say who may call it: its Who is %q", r.Name(), r.Who)
	}
	return nil
}
