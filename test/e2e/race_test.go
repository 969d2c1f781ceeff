//go:build race

package e2e

// underRace reports that the tests run with the race detector. The service is then built
// with it, too.
const underRace = true
