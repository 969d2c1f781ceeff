package jsonschema

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// The golden payload of each subject is like its schema, and an object without members is unlike it.
func TestEveryExampleIsLikeItsSchema(t *testing.T) {
	for _, info := range events.Subjects() {
		golden, err := os.ReadFile(filepath.Join("..", "..", "events", "testdata", info.Name()+".json"))
		must.OK(t, err)
		if err := Check(info.Subject, nil, golden); err != nil {
			t.Errorf("%s: %v", info.Name(), err)
		}
		if Check(info.Subject, nil, []byte(`{}`)) == nil {
			t.Errorf("%s: a payload without members is like its schema", info.Name())
		}
	}
	if err := Check(999, nil, []byte(`{}`)); err != ErrUnknown {
		t.Errorf("an unknown subject: %v", err)
	}
}

// A member of another type, in another form, or not in an enumeration is unlike the schema.
func TestAPayloadUnlikeItsSchemaIsFound(t *testing.T) {
	for _, payload := range []string{
		`{"amount":"1"}`,
		`{"amount":1,"eventId":"e","feature":"f","timestamp":"yesterday","type":"usage"}`,
		`{"amount":1,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"gift"}`,
		`{"amount":99999999999999999999,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"usage"}`,
		`{"amount":1,"eventId":"e","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"usage","metadata":"m"}`,
		`no JSON`,
	} {
		if Check(events.UsageRecorded, nil, []byte(payload)) == nil {
			t.Errorf("%s is like its schema", payload)
		}
	}
}
