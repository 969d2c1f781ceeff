package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// importState is the saved state of an import, one file per name. Only the anchor
// affects the events; the progress is informational: a repeated import sends all
// events again, and the service detects duplicates.
type importState struct {
	Name   string     `json:"name"`
	SHA256 string     `json:"sha256"` // of the file
	Rows   int64      `json:"rows"`
	Terms  terms      `json:"terms"`
	Anchor *time.Time `json:"anchor,omitempty"` // shifted time of the latest row

	EventsKnown int64      `json:"eventsKnown"` // accepted or duplicate, in the last run
	EventsTotal int64      `json:"eventsTotal"`
	FinishedAt  *time.Time `json:"finishedAt,omitempty"`
}

// terms are the settings that determine the events, besides the file.
type terms struct {
	Columns    []ColumnMapping `json:"columns"`
	TimeColumn string          `json:"timeColumn"`
	TimeFormat string          `json:"timeFormat,omitempty"`
	Zone       string          `json:"timeZone"`
	Metadata   []string        `json:"metadata"`
	Times      string          `json:"times"`
	Delimiter  rune            `json:"delimiter,omitempty"`
	TypeColumn string          `json:"typeColumn,omitempty"`
	RefColumn  string          `json:"refColumn,omitempty"`
}

func (job *Job) terms() terms {
	m := &job.Mapping
	return terms{m.Columns, m.TimeColumn, m.TimeFormat, m.Zone.String(), append([]string{}, m.Metadata...), job.Times, m.Delimiter, m.TypeColumn, m.RefColumn}
}

func (im *Importer) statePath(name string) string {
	return filepath.Join(im.StateDir, name+".json")
}

// begin returns the import's saved state, or a new one that is on disk before the
// first event is sent.
func (im *Importer) begin(ctx context.Context, job Job, s scan) (*importState, error) {
	path := im.statePath(job.Name)
	kept, err := readState(path)
	if err != nil {
		return nil, err
	}
	if kept == nil {
		fresh := &importState{Name: job.Name, SHA256: s.sha256, Rows: s.rows, Terms: job.terms(), EventsTotal: s.events}
		if job.Times == TimesShifted {
			if fresh.Anchor, err = im.anchor(ctx, job, s); err != nil {
				return nil, err
			}
		}
		err := createState(path, fresh)
		if err == nil {
			return fresh, nil
		}
		// A concurrent import of that name created its state first: use its anchor.
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if kept, err = readState(path); err != nil {
			return nil, err
		}
	}
	if err := kept.fits(path, job, s); err != nil {
		return nil, err
	}
	im.Report("The import %q was begun before (%d of %d events known then): known events count once.", job.Name, kept.EventsKnown, kept.EventsTotal)
	return kept, nil
}

// fits refuses a different file or mapping under the same name: its events would get
// different ids or payloads, and be counted in addition or be conflicts.
func (st *importState) fits(path string, job Job, s scan) error {
	var differs []string
	if st.SHA256 != s.sha256 {
		differs = append(differs, fmt.Sprintf("the file is another (SHA-256 %.12s…, then %.12s…)", s.sha256, st.SHA256))
	}
	now, then := reflect.ValueOf(job.terms()), reflect.ValueOf(st.Terms)
	for i := range now.NumField() {
		if a, b := now.Field(i).Interface(), then.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			name := now.Type().Field(i).Tag.Get("json")
			name, _, _ = strings.Cut(name, ",")
			differs = append(differs, fmt.Sprintf("%s: %v, then %v", name, a, b))
		}
	}
	if len(differs) == 0 {
		return nil
	}
	return fmt.Errorf("an import %q was begun with another file or options; no event was sent\n  %s\n  hint: give this one another --name. Events sent under the old name stay. (Kept in %s)",
		job.Name, strings.Join(differs, "\n  "), path)
}

// anchor returns the current time or, if the service already knows the import's
// first event, the earlier anchor: the state file may be lost or on another
// machine, and a different anchor would make every event a conflict.
func (im *Importer) anchor(ctx context.Context, job Job, s scan) (*time.Time, error) {
	now := im.Now().UTC().Truncate(time.Microsecond)
	id := eventID(job.Name, s.first.amounts[0].feature, s.first)
	raw, err := im.Client.Get(ctx, client.Path("usage", "events", id), nil)
	if p, ok := errors.AsType[*client.Problem](err); ok {
		switch p.Status {
		case http.StatusForbidden:
			im.Report("The key lacks usage:read, so an earlier run of this import cannot be found: it starts as a new one.")
			return &now, nil
		case http.StatusNotFound:
			return &now, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the import's first event: %w", err)
	}
	var receipt struct {
		Payload struct{ Timestamp time.Time }
	}
	if err := json.Unmarshal(raw, &receipt); err != nil || receipt.Payload.Timestamp.IsZero() {
		return nil, fmt.Errorf("the receipt of event %s has no time: %s", id, raw)
	}
	at := s.latest.Add(receipt.Payload.Timestamp.Sub(s.first.at)).UTC()
	im.Report("The service knows the import %q: its times continue.", job.Name)
	return &at, nil
}

// readState returns nil if there is no state file.
func readState(path string) (*importState, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the import's state: %w", err)
	}
	var st importState
	if err := json.Unmarshal(text, &st); err != nil {
		return nil, fmt.Errorf("the import's state %s cannot be read: %w", path, err)
	}
	return &st, nil
}

// createState fails with fs.ErrExist if the file exists: of two imports that begin
// concurrently, only one creates the state.
func createState(path string, st *importState) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the directory for imports: %w", err)
	}
	return placeState(path, st, os.Link)
}

func saveState(path string, st *importState) error { return placeState(path, st, os.Rename) }

// placeState writes a temporary file, then links or renames it to path.
func placeState(path string, st *importState, place func(from, to string) error) error {
	text, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("write the import's state: %w", err)
	}
	aside, err := os.CreateTemp(filepath.Dir(path), ".state-*")
	if err != nil {
		return fmt.Errorf("write the import's state: %w", err)
	}
	defer os.Remove(aside.Name())
	_, err = aside.Write(append(text, '\n'))
	if err := errors.Join(err, aside.Sync(), aside.Close()); err != nil {
		return fmt.Errorf("write the import's state: %w", err)
	}
	if err := place(aside.Name(), path); err != nil {
		return fmt.Errorf("keep the import's state: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a new directory entry durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the directory for imports: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the directory for imports: %w", err)
	}
	return nil
}
