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
	const offboard = "POST /api/v1/tenants/{tenantId}/offboard"
	return []*action{
		{name: "offboard", path: tenantPath + "/offboard", label: "Offboard the tenant", does: offboard,
			warn: "The tenant is suspended, its periods are closed, and its keys are revoked in the end. Until it is ARCHIVED this can be cancelled."},
		{name: "cancel-offboarding", path: tenantPath + "/offboard/cancel", label: "Cancel the offboarding", does: offboard + "/cancel",
			warn: "Periods that it closed before their end are reopened."},
	}
}
