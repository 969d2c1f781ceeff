//go:build race

package e2e

// underRace says that the tests run under the race detector: the service is then
// built with it, too.
const underRace = true
