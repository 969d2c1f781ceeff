// Package http takes the place of a package that ruletest compiles and never calls, with gRPC and Google's libraries behind it.
package http

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/api/option"
)

// NewTransport fails.
func NewTransport(context.Context, http.RoundTripper, ...option.ClientOption) (http.RoundTripper, error) {
	return nil, errors.ErrUnsupported
}
