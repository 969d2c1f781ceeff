package http

import "github.com/meterplex/meterplex/http/api"

// ForgeCursor writes a cursor of a list to any position.
func ForgeCursor(generation int, after string, of ...string) string {
	return *api.List(of).Next(generation, after)
}
