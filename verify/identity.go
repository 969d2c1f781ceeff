package verify

import (
	"encoding/json"
	"fmt"
)

// identity checks the service's own identity of accepted events.
func identity(svc Service) Check {
	found := Check{Name: "P3 every accepted event is in exactly one state", Looked: true, Needs: "http"}
	raw, err := svc.Identity()
	var answer struct {
		Holds *bool
		Total struct{ Accepted, Applied, Rejected, Undecided, Unapplied, Parked, Missing int64 }
	}
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err != nil {
		found.Figures = err.Error()
		return found
	}
	t := answer.Total
	found.Holds = answer.Holds
	found.Figures = fmt.Sprintf("accepted %d = applied %d + rejected %d + undecided %d + unapplied %d + parked %d, missing %d",
		t.Accepted, t.Applied, t.Rejected, t.Undecided, t.Unapplied, t.Parked, t.Missing)
	return found
}
