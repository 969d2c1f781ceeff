// Package option takes the place of a package that ruletest compiles and never calls, with gRPC and Google's libraries behind it.
package option

// ClientOption is an option that no transport reads.
type ClientOption any

// CredentialsType is the kind of a file of credentials.
type CredentialsType string

// ServiceAccount is the kind of the account of a service.
const ServiceAccount CredentialsType = "service_account"

// WithScopes returns no option.
func WithScopes(...string) ClientOption { return nil }

// WithAuthCredentialsFile returns no option.
func WithAuthCredentialsFile(CredentialsType, string) ClientOption { return nil }

// WithCredentials returns no option.
func WithCredentials(any) ClientOption { return nil }
