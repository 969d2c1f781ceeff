package domain

import "regexp"

// Forms of the keys of the catalogue.
const (
	LookupKeyForm = `^[a-z][a-z0-9_.-]{0,63}$`          // of a feature, which is its name in events
	KeyForm       = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$` // of a plan or a price
)

// MaxFeature bounds the key of a feature, in characters.
const MaxFeature = 64

var keyForm = regexp.MustCompile(KeyForm)

// IsKey reports whether a plan or a price can have the key.
func IsKey(key string) bool { return keyForm.MatchString(key) }

// IsLookupKey reports whether a feature can have the key, without an allocation: each usage event is asked.
func IsLookupKey[T string | []byte](key T) bool {
	if len(key) < 1 || len(key) > MaxFeature || key[0]-'a' > 'z'-'a' {
		return false
	}
	for i := 1; i < len(key); i++ {
		if c := key[i]; c-'a' > 'z'-'a' && c-'0' > 9 && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// CheckFeatureKey refuses a text at a place of a request that is no key of a feature.
func CheckFeatureKey(key, pointer string) *Error {
	if IsLookupKey(key) {
		return nil
	}
	return &Error{Code: "feature_invalid", Message: "a feature matches " + LookupKeyForm, Pointer: pointer}
}
