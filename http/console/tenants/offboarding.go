package tenants

import "github.com/meterplex/meterplex/http/console"

func offboardingActions() []*console.Action {
	const offboard = "POST /api/v1/tenants/{tenantId}/offboard"
	return []*console.Action{
		{Name: "offboard", Path: TenantPath + "/offboard", Label: "Offboard the tenant", Does: offboard,
			Warn: "The tenant is suspended, its periods are closed, and its keys are revoked in the end. Until it is ARCHIVED this can " +
				"be cancelled."},
		{Name: "cancel-offboarding", Path: TenantPath + "/offboard/cancel", Label: "Cancel the offboarding", Does: offboard + "/cancel",
			Warn: "Periods that it closed before their end are reopened."},
	}
}
