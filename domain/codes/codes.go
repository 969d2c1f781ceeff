// Package codes holds the table of error codes: of refused requests, refused events and dead letters.
// An entry has the HTTP status, the meaning, the remedy, and whether a retry can succeed. Problems, the
// OpenAPI document, the page /docs, docs/reference/errors.md and the hints of the command line derive from it. The
// package makes no decisions: domain, commands and http choose the code of a refusal.
package codes

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Code is an entry of the table.
type Code struct {
	// Name is stable and in snake_case.
	Name string
	// Status is the HTTP status of a request that is refused with the code, 0 if no request is.
	Status int
	// AnsweredIn holds the members in which the code is answered.
	AnsweredIn Members
	// Retry reports whether the same request or event can succeed later.
	Retry bool
	// After is the shortest wait before a retry of a request, in seconds, for Retry-After; 0: no retry.
	After int
	// Meaning is one sentence without a full stop, the same for each occurrence.
	Meaning string
	// Remedy is the next action of the caller, an imperative sentence without a full stop.
	Remedy string
}

// Cells are the status and the retry as tables show them.
func (c Code) Cells() (status, retry string) {
	status, retry = "–", "no"
	if c.Status != 0 {
		status = strconv.Itoa(c.Status)
	}
	if c.Retry {
		retry = "yes"
	}
	return status, retry
}

// Members is a set of members of answers.
type Members uint8

// The members that have codes.
const (
	Request    Members = 1 << iota // code of a problem, and code in its errors
	Event                          // code of an event of POST /usage/events
	DeadLetter                     // code of a dead letter, and of its event in lists and receipts
	Item                           // code in the errors of a problem, of an entry of a bulk answer, or in the failure of a rebuild
)

// All returns the table, ordered by name.
func All() []Code {
	all := slices.Concat(access(), bodies(), parameters(), usageMembers(), usagePolicy(), reservations(), tenants(), catalogue(),
		deadLetters(), failures(),
		rebuilds(), promotions(), replays(), periods(), sagas(), pushes(), pushAttempts(), webhooks(), thresholds(), offboarding(),
		erasures(), service())
	slices.SortFunc(all, func(a, b Code) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// In returns the names of the codes that are answered in one of the members, in order.
func In(members Members) (names []string) {
	for _, c := range All() {
		if c.AnsweredIn&members != 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

// Find returns the entry of a name, and whether the table has one.
func Find(name string) (Code, bool) {
	c, found := byName()[name]
	return c, found
}

// byName holds the table once: a busy service refuses many requests.
var byName = sync.OnceValue(func() map[string]Code {
	entries := map[string]Code{}
	for _, c := range All() {
		entries[c.Name] = c
	}
	return entries
})

// String names the members as docs/reference/errors.md does.
func (m Members) String() string {
	var names []string
	for i, name := range []string{"request", "event", "dead letter", "item"} {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
