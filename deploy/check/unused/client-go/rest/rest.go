// Package rest takes the place of a package of which Helm only passes the configuration on.
package rest

// Config is the configuration of a client.
type Config struct{}
