// Package simulation runs the service's own code on a simulated clock, database and broker, with
// faults drawn from a seed. It consists of tests: no other package imports it. See docs/project/simulation.md.
package simulation
