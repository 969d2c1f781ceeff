package events

// ResidencyUnspecified is the default data residency of tenants and deployments.
const ResidencyUnspecified = "unspecified"

// maxResidency bounds a data residency, in characters.
const maxResidency = 32

// IsResidency reports whether a text is a valid data residency or region of a
// deployment: ^[a-z][a-z0-9-]{0,31}$.
func IsResidency(s string) bool {
	if len(s) == 0 || len(s) > maxResidency || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
