package usage

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	history "github.com/meterplex/meterplex/cmd/meterplex/cli/events"
	"github.com/meterplex/meterplex/events"
)

// Export exports usage events in the form of ingest.
type Export struct {
	TenantID string `name:"tenant" placeholder:"ID" aliases:"tenant-id" help:"Of this tenant; operator keys have to name one."`
	From     string `placeholder:"TIME" help:"Recorded at or after this time, RFC 3339."`
	To       string `placeholder:"TIME" help:"Recorded before this time, RFC 3339."`
}

// Help returns the long help text.
func (Export) Help() string {
	return `Each line is an event as its producer sent it, in the order of the log, so corrections follow their usage. usage send reads
these lines: into the same tenant, where all of them are duplicates, or into another one, which counts them, too.

    meterplex usage export > usage.ndjson
    METERPLEX_KEY=… meterplex usage send < usage.ndjson

The key needs events:read. Events that were accepted and later rejected by the validator are among them.`
}

// Run writes the lines.
func (c *Export) Run(a *app.App) error {
	export := history.Export{BoundedEvents: history.BoundedEvents{
		WantedEvents: history.WantedEvents{TenantID: c.TenantID, Subject: usageSubjects, From: c.From}, To: c.To,
	}}
	var tenant string
	return export.Write(a, func(line string) (string, error) {
		of, event, err := producersForm(line)
		if err != nil || event == "" {
			return "", err
		}
		if tenant != "" && of != tenant {
			return "", errors.New("the usage is of several tenants, which may have equal eventIds: name one by --tenant")
		}
		tenant = of
		return event, nil
	})
}

// usageSubjects is the prefix of the subjects of usage.
const usageSubjects = "meterplex.usage.event."

// producersForm returns the event of a line as POST /usage/events takes it, "" if the line is no usage, and its tenant.
func producersForm(line string) (tenant, event string, err error) {
	var logged struct {
		EventType    string
		EventVersion int
		TenantID     string
		Payload      json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &logged); err != nil {
		return "", "", fmt.Errorf("read an event: %w", err)
	}
	subject, _ := events.SubjectOf(logged.EventType, logged.EventVersion)
	if !subject.IsUsage() && !subject.IsCorrection() {
		return logged.TenantID, "", nil
	}
	var sent struct {
		EventID       string          `json:"eventId"`
		Feature       string          `json:"feature"`
		Amount        *int64          `json:"amount,omitempty"`
		Timestamp     string          `json:"timestamp"`
		Metadata      json.RawMessage `json:"metadata,omitempty"`
		Source        string          `json:"source,omitempty"`
		Type          string          `json:"type"`
		CorrectionRef string          `json:"correctionRef,omitempty"`
	}
	if err := json.Unmarshal(logged.Payload, &sent); err != nil {
		return "", "", fmt.Errorf("read a usage event: %w", err)
	}
	text, err := json.Marshal(sent)
	return logged.TenantID, string(text), err
}
