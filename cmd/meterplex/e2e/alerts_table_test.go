package e2e

import (
	"slices"
	"testing"

	"github.com/meterplex/meterplex/deploy/observe"
)

// causeOfAlert is the fault by which a test causes an alert.
type causeOfAlert struct{ fault, test string }

// causesOfAlerts names the fault of each alert.
func causesOfAlerts() map[string]causeOfAlert {
	const service = "TestEveryAlertFiresForItsFault"
	return map[string]causeOfAlert{
		"MeterplexIdentityBroken":   {"a row of usage_aggregates is deleted as the superuser", service},
		"MeterplexProjectionDrift":  {"a row of usage_series is changed as the superuser", service},
		"MeterplexQuotaDrift":       {"an account is changed as the superuser", service},
		"MeterplexPayloadConflicts": {"a producer sends eventIds again with other amounts", service},
	}
}

// TestEveryAlertHasAFault fails if an alert of the table has no fault that causes it.
func TestEveryAlertHasAFault(t *testing.T) {
	causes := causesOfAlerts()
	names := map[string]bool{}
	for _, a := range observe.Alerts() {
		names[a.Name] = true
		if causes[a.Name].fault == "" {
			t.Errorf("%s has no fault", a.Name)
		}
	}
	for name := range causes {
		if !names[name] {
			t.Errorf("%s is no alert", name)
		}
	}
}

// Each runbook of an alert has all parts, and a command of its check that runs.
func TestEveryRunbookHasAllParts(t *testing.T) {
	for _, a := range observe.Alerts() {
		parts, err := runbookOf(a.Runbook)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range partsOfRunbooks() {
			if parts[part] == "" {
				t.Errorf("%s: docs/runbooks/%s has no part %q", a.Name, a.Runbook, part)
			}
		}
		if len(commandsOf(parts[checkPart])) == 0 {
			t.Errorf("%s: the check of docs/runbooks/%s has no command", a.Name, a.Runbook)
		}
	}
}

var _ = slices.Contains[[]int]
