package codes

import "slices"

// OfTenants returns the codes that a tenant's key meets in usage, limits and reads.
func OfTenants() []Code {
	return slices.Concat(access(), bodies(), parameters(), usageMembers(), usagePolicy(), reservations(), service())
}
