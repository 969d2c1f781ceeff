package usage

import (
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// The hash of a version never changes: snapshots keep it for ever. Change neither the golden log nor this hash; a fold that counts in another way is a
// new version.
func TestP8_TheHashOfALogicNeverChanges(t *testing.T) {
	double := func(e *events.Envelope) (Key, Delta, error) {
		key, delta, err := FoldV1(e)
		delta.Amount *= 2
		return key, delta, err
	}
	uncounted := func(e *events.Envelope) (Key, Delta, error) {
		key, delta, err := FoldV1(e)
		delta.Count = 0
		return key, delta, err
	}
	f := PeriodFigures{Folds: projections.Versions[Fold]{{Name: V1, Fold: FoldV1}, {Name: "same", Fold: FoldV1}, {Name: "double", Fold: double}, {Name: "uncounted", Fold: uncounted}}}
	const golden = "9b6a431f7945141692dbccb632dff8c34c6417c4deba49456d624b4b7fc2546e"
	for version, same := range map[string]bool{V1: true, "same": true, "double": false, "uncounted": false} {
		got, err := f.LogicHash(version)
		if err != nil || (got == golden) != same || len(got) != 64 {
			t.Errorf("%s has the hash %s, %v", version, got, err)
		}
	}
	if _, err := f.LogicHash("usage_aggregates/v0"); err == nil {
		t.Error("an unknown version has a hash")
	}
}
