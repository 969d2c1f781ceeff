package codes

// erasures holds the codes of erasures of personal data.
func erasures() []Code {
	return []Code{
		{"erasure_not_found", 404, Request, false, 0, "The personal data of the tenant was never erased", "Check the tenant's id"},
		{"tenant_not_archived", 409, Request, false, 0, "Only the personal data of an archived tenant is erased",
			"Offboard the tenant first: POST /tenants/{tenantId}/offboard"},
	}
}
