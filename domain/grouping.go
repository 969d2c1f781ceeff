package domain

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"
)

const (
	// MaxGroupKeys bounds the metadata keys by which the usage of a feature is grouped.
	MaxGroupKeys = 2
	// MaxGroupValues bounds the values of a key, for each tenant and feature. Later values are counted as
	// GroupOther.
	MaxGroupValues = 1000
	// MaxGroupValue bounds a value in bytes: it is in the key of a row. Longer ones are counted as GroupOther.
	MaxGroupValue = 100
	// GroupOther is the value of all usage whose own value is not kept.
	GroupOther = "other"
)

// GroupingDelay is the time after which the changed keys of a feature apply to recorded usage. It is much
// longer than a commit and the difference of two servers' clocks, so that the change is visible to each consumer
// that folds usage recorded after it. A rebuild then applies the same keys.
const GroupingDelay = time.Minute

// GroupValue returns the text of a member of the metadata that usage is grouped by: a string as it is, a number or a boolean as its
// JSON. ok is false if the member is missing or null. Objects, arrays, long texts and those with control characters are GroupOther.
func GroupValue(raw json.RawMessage) (value string, ok bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", false
	}
	switch raw[0] {
	case '{', '[':
		return GroupOther, true
	case '"':
		if json.Unmarshal(raw, &value) != nil {
			return GroupOther, true
		}
	default:
		value = string(raw)
	}
	if len(value) > MaxGroupValue || strings.ContainsFunc(value, unicode.IsControl) {
		return GroupOther, true
	}
	return value, true
}
