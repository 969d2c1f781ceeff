package audit

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/events"
)

// summaryOf summarizes an event in a few words. It is for people: only the payload
// is exact.
func summaryOf(e *events.Envelope) string {
	var p struct {
		EventID       string `json:"eventId"`
		Feature       string `json:"feature"`
		Amount        *int64 `json:"amount"`
		PeriodKey     string `json:"periodKey"`
		Code          string `json:"code"`
		Attempt       int    `json:"attempt"`
		Status        string `json:"status"`
		DeadLetterID  string `json:"deadLetterId"`
		Position      string `json:"position"`
		Name          string `json:"name"`
		LookupKey     string `json:"lookupKey"`
		Key           string `json:"key"`
		CorrectionRef string `json:"correctionRef"`
		Plan          string `json:"plan"`
	}
	info, _ := e.Subject.Info()
	words := strings.Split(info.Type, ".")
	if len(words) < 4 || json.Unmarshal(e.Payload, &p) != nil {
		return info.Type
	}
	what := strings.ReplaceAll(words[2]+" "+words[3], "_", " ")
	switch e.Subject {
	case events.UsageRecorded, events.UsageAdmitted, events.UsageConflicted:
		return join(what, p.EventID, p.Feature, amountText(p.Amount))
	case events.UsageCorrected:
		return join(what, p.EventID, p.Feature, "of", p.CorrectionRef, "to", amountText(p.Amount))
	case events.UsageRetracted:
		return join(what, p.EventID, p.Feature, "of", p.CorrectionRef)
	case events.UsageValidated:
		return join(what, p.EventID, p.Feature, amountText(p.Amount), "in "+p.PeriodKey)
	case events.UsageRejected:
		return join(what, p.EventID, p.Code)
	case events.UsageRetried, events.Reaggregated:
		return join(what, "attempt", fmt.Sprint(p.Attempt))
	case events.DeadLetterRetried:
		return join(what, "attempt", fmt.Sprint(p.Attempt), "by", p.Position)
	case events.PublishFailed, events.AggregationFailed, events.RetryRefused:
		return join(what, p.Code)
	case events.DeadLetterClosed:
		return join(what, p.Status)
	}
	return join(what, p.Name, p.LookupKey, p.Key, p.Plan, p.Status)
}

func join(words ...string) string {
	present := words[:0]
	for _, w := range words {
		if w != "" {
			present = append(present, w)
		}
	}
	return strings.Join(present, " ")
}

func amountText(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
