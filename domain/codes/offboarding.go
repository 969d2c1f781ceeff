package codes

// offboarding holds the codes of ends of tenants.
func offboarding() []Code {
	return []Code{
		{"offboarding_ended", 409, Request, false, 0, "The offboarding has ended",
			"Read it with GET /tenants/{tenantId}/offboard; an archived tenant stays archived"},
		{"offboarding_not_found", 404, Request, false, 0, "The tenant was never offboarded", "Check the tenant's id"},
		{"tenant_offboarding", 409, Request, false, 0, "The tenant is being offboarded, or is archived",
			"Cancel the offboarding first, until the tenant is archived: POST /tenants/{tenantId}/offboard/cancel"},
	}
}
