// Package sigv4 takes the place of a package that ruletest compiles and never calls, with the SDK of AWS behind it.
package sigv4

import (
	"errors"
	"net/http"
)

// SigV4Config is the type of a member of Prometheus' configuration, which ruletest does not read.
type SigV4Config struct{}

// NewSigV4RoundTripper fails.
func NewSigV4RoundTripper(*SigV4Config, http.RoundTripper) (http.RoundTripper, error) {
	return nil, errors.ErrUnsupported
}
