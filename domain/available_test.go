package domain

import (
	"slices"
	"testing"
)

func TestInertOffersAreNotUsable(t *testing.T) {
	for _, o := range Inert() {
		if Available(o.Kind, o.Name) || len(Usable(o.Kind, o.Name)) != 0 {
			t.Errorf("the %s %s is inert and available", o.Kind, o.Name)
		}
	}
	if got := Usable(OfferedRole, "api", "sealer", "relay"); !slices.Equal(got, []string{"api", "relay"}) {
		t.Errorf("usable are %v", got)
	}
	if !Available(OfferedScope, "sealer") {
		t.Error("a role makes a scope inert")
	}
}
