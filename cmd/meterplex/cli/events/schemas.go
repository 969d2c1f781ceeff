package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// SchemasCmd groups the schemas commands.
type SchemasCmd struct {
	Show SchemasShow `cmd:"" help:"Show the JSON Schema of an event's payload."`
}

// SchemasShow shows a schema.
type SchemasShow struct {
	Subject string `arg:"" placeholder:"SUBJECT[/vN]" help:"A subject, at its newest version, or the schemaUri of an event."`
}

// schemaName matches a subject with an optional version, and a schemaUri.
var schemaName = regexp.MustCompile(`^(?:/api/v1/schemas/)?([^/#]+?)(?:[/.]v([0-9]+))?(?:#sha256=([0-9a-f]{64}))?$`)

// Run prints the document. A table would not show it whole.
func (c *SchemasShow) Run(a *app.App) error {
	name := schemaName.FindStringSubmatch(c.Subject)
	if name == nil {
		return fmt.Errorf("%q is not a subject: expected SUBJECT, SUBJECT/vN or a schemaUri, e.g. meterplex.usage.event.recorded/v1",
			c.Subject)
	}
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	subject, version := name[1], name[2]
	if version == "" {
		if version, err = newestSchema(a, cl, subject); err != nil {
			return err
		}
	}
	document, err := cl.Get(a.Ctx, client.Path("schemas", subject, "v"+version), url.Values{"sha256": {name[3]}})
	if err != nil {
		return err
	}
	if a.Flags.Output != "table" {
		return a.Object(document)
	}
	_, err = fmt.Fprintln(a.Stdout, strings.TrimSpace(string(document)))
	return err
}

// newestSchema finds the newest version of a subject; 1 if the subject is not listed, so that the
// service names the existing ones.
func newestSchema(a *app.App, cl *client.Client, subject string) (string, error) {
	newest := 1
	err := cl.Each(a.Ctx, "/schemas", nil, 0, func(raw json.RawMessage) error {
		var row struct {
			Subject string
			Version int
		}
		if err := json.Unmarshal(raw, &row); err != nil {
			return errors.New("read the schemas: a row is not an object with subject and version")
		}
		if row.Subject == subject {
			newest = max(newest, row.Version)
		}
		return nil
	})
	return strconv.Itoa(newest), err
}
