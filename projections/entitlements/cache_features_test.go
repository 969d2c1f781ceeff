package entitlements

import (
	"testing"
)

// Callers after a change of the catalogue do not wait for features that are read since before it, and these are not cached.
func TestFeaturesReadBeforeAChangeAreNotCached(t *testing.T) {
	for name, restarted := range map[string]bool{"a change of the catalogue": false, "another server": true} {
		c := NewCache(nil, nil)
		c.sawCatalogue(10, false)
		f := &c.feed.features
		before := &featureLoad{done: make(chan struct{})}
		f.load = before
		c.sawCatalogue(10, false)
		if f.load != before {
			t.Errorf("%s: a poll without a change ends a read of the features", name)
		}
		position := int64(11)
		if restarted {
			position = 10
		}
		c.sawCatalogue(position, restarted)
		if f.load == before || f.known != nil {
			t.Errorf("%s: later callers get the features that were read before it", name)
		}
	}
}
