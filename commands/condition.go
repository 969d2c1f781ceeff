package commands

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/domain"
)

// Entity is a kind of entity whose state a request may name.
type Entity string

// Entities that have versions.
const (
	EntityFeature      Entity = "feature"
	EntityPlan         Entity = "plan"
	EntityPrice        Entity = "price"
	EntityTenant       Entity = "tenant"
	EntitySubscription Entity = "subscription"
	EntityRebuild      Entity = "rebuild"
	EntityPeriod       Entity = "period"
	EntityWebhook      Entity = "webhook" // its deliveries save it, too
)

// Ref names an entity: ID is its key or id, of a period that of its tenant. Key is the key of a period.
type Ref struct {
	Of      Entity
	ID, Key string
}

// Versions reads versions: a version changes whenever its entity is saved, and never returns. That of an entity that does not exist is "".
type Versions interface {
	Version(of Ref) (string, error)
}

// Condition is the state of an entity that a change requires.
type Condition struct {
	Ref
	Tags    []string // one of them is the tag of the state; nil: any state
	Present bool     // the entity exists; Tags need it, too
	Absent  bool     // the entity does not exist
}

// Tag returns the entity tag of a version; "" of the version "".
func (r *Ref) Tag(version string) string {
	if version == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(r.Of), r.ID, r.Key, version}, "\n")))
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}

// check refuses a change of another state than the condition's.
func (c *Condition) check(tx Versions) error {
	if c == nil {
		return nil
	}
	version, err := tx.Version(c.Ref)
	if err != nil {
		return err
	}
	now := c.Tag(version)
	switch {
	case c.Absent && now != "":
		return changedTo(now, "the "+string(c.Of)+" exists by now, and was not changed")
	case (c.Present || c.Tags != nil) && now == "":
		return changedTo(now, "no such "+string(c.Of)+" exists, and it was not created")
	case c.Tags != nil && !slices.Contains(c.Tags, now):
		return changedTo(now, "the "+string(c.Of)+" has changed since it was read, and it was not changed again")
	}
	return nil
}

func changedTo(tag, message string) *domain.Error {
	refusal := domain.Refuse("state_changed", "", "%s", message)
	refusal.Current = &domain.Current{ETag: tag}
	return refusal
}
