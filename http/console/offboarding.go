package console

import "net/http"

// offboarding reads the last offboarding of a tenant; nil if there is none.
func (v *visit) offboarding(tenant string) (doc, error) {
	asked := v.asked
	found, err := v.try(api("tenants", tenant, "offboard"), nil)
	if refused, _ := found["problem"].(*refusal); refused != nil && refused.Status == http.StatusNotFound {
		v.asked = asked // the command would fail
		return nil, nil
	}
	return found, err
}

func offboardingActions() []*action {
	post := func(name, path, label, warn string, below ...string) *action {
		return &action{name: name, path: tenantPath + path, label: label, warn: warn, who: operator, scopes: admins(),
			request: func(v *visit, _ form) (request, error) {
				return request{Method: http.MethodPost, Path: api(append([]string{"tenants", v.param("tenantId"), "offboard"}, below...)...)}, nil
			}}
	}
	return []*action{
		post("offboard", "/offboard", "Offboard the tenant", "The tenant is suspended, its periods are closed, and its keys are revoked in the end. Until it is ARCHIVED this can be cancelled."),
		post("cancel-offboarding", "/offboard/cancel", "Cancel the offboarding", "Periods that it closed before their end are reopened.", "cancel"),
	}
}
