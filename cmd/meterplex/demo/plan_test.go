package demo

import (
	"testing"
)

// TestDemoPlanGrantsItsFeatures: the demo's plan grants the features that its usage needs.
func TestDemoPlanGrantsItsFeatures(t *testing.T) {
	features := Features()
	for _, e := range Plan().Entitlements {
		f, ok := features[e.Feature]
		if !ok || (f.Type == "BOOLEAN") != (e.ResetPeriod == "") {
			t.Errorf("%+v of %+v", e, f)
		}
		delete(features, e.Feature)
	}
	if len(features) > 0 {
		t.Errorf("not granted: %v", features)
	}
}
