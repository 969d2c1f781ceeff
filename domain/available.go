package domain

import (
	"fmt"
	"slices"
)

// Offer is a name of the contract that users may give: a scope of a key, a role of an instance, a topic.
type Offer struct{ Kind, Name string }

// Kinds of offers.
const (
	OfferedScope = "scope"
	OfferedRole  = "role"
	OfferedTopic = "topic"
)

// inert lists the scopes, roles and topics that no code uses yet. A change that uses one deletes its entry; only this list refuses it.
var inert = []Offer{
	{OfferedRole, "notifier"},
	{OfferedRole, "sealer"},
	{OfferedTopic, "meterplex.notifications"},
}

// Inert returns the scopes, roles and topics that no code uses yet.
func Inert() []Offer { return slices.Clone(inert) }

// Available reports whether this version uses an offer. It does not check that the name exists.
func Available(kind, name string) bool { return !slices.Contains(inert, Offer{kind, name}) }

// Usable returns the names of a kind that this version uses.
func Usable(kind string, names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !Available(kind, name) })
}

// NotAvailable is the text of the refusal of an inert offer.
func NotAvailable(kind, name string) string {
	return fmt.Sprintf("the %s %s is not available in this version", kind, name)
}
