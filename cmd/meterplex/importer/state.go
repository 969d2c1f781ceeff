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
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// importState is how an import was begun, one file per name. It is no progress: a repeated import sends all events
// again, and the service detects duplicates. Only the anchor affects the events; the rest refuses options that would
// count rows again.
type importState struct {
	Name   string     `json:"name"`
	SHA256 string     `json:"sha256"` // of the file's text
	Terms  terms      `json:"terms"`
	Anchor *time.Time `json:"anchor,omitempty"` // shifted time of the latest row of the first file
	Latest time.Time  `json:"latest,omitzero"`  // its time in the file
}

// terms are the settings that determine the ids of events, besides the file.
type terms struct {
	Mapping
	Zone  string `json:"timeZone"`
	Times string `json:"times"`
	Again bool   `json:"again,omitempty"`
}

func (job *Job) terms() terms {
	return terms{job.Mapping, job.Mapping.Zone.String(), job.Times, job.Again}
}

// ids returns the maker of the import's ids.
func (job *Job) ids() *eventIDs {
	ids := &eventIDs{seen: map[[16]byte]uint32{}}
	if job.Again {
		ids.again = job.Name
	}
	return ids
}

func (im *Importer) statePath(name string) string {
	return filepath.Join(im.StateDir, name+".json")
}

// begin returns the import's saved state, or a new one. It is on disk before the first event is sent.
func (im *Importer) begin(ctx context.Context, job Job, s scan) (*importState, error) {
	path := im.statePath(job.Name)
	kept, err := readState(path)
	if err != nil {
		return nil, err
	}
	if kept == nil {
		if err := im.compareOthers(job, s); err != nil {
			return nil, err
		}
		fresh := &importState{Name: job.Name, SHA256: s.sha256, Terms: job.terms()}
		if job.Times == TimesShifted {
			if fresh.Anchor, err = im.anchor(ctx, job, s); err != nil {
				return nil, err
			}
			fresh.Latest = s.latest
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
	if err := kept.fits(path, job); err != nil {
		return nil, err
	}
	im.Report("The import %q was begun before: known events count once.", job.Name)
	kept.SHA256 = s.sha256
	for _, c := range job.Mapping.Columns {
		if !hasFeature(kept.Terms.Columns, c.Feature) {
			kept.Terms.Columns = append(kept.Terms.Columns, c)
		}
	}
	return kept, placeState(path, kept, os.Rename)
}

// fits refuses options under which the rows of an import would get other ids, and count again.
func (st *importState) fits(path string, job Job) error {
	differs := st.Terms.differ(job.terms())
	if len(differs) == 0 {
		return nil
	}
	return fmt.Errorf("the import %q was begun with other options, so its rows would count again; no event was sent\n  %s\n  hint: give "+
		"the same options, or --again with another --name to count them again. (Kept in %s)",
		job.Name, strings.Join(differs, "\n  "), path)
}

// compareOthers refuses a file that was imported under another name, with options under which its rows would count again.
func (im *Importer) compareOthers(job Job, s scan) error {
	paths, err := filepath.Glob(filepath.Join(im.StateDir, "*.json"))
	if err != nil || job.Again {
		return err
	}
	for _, path := range paths {
		st, err := readState(path)
		if err != nil || st == nil || st.SHA256 != s.sha256 || st.Terms.Again {
			continue // damaged states are reported under their own name
		}
		if differs := st.Terms.differ(job.terms()); len(differs) > 0 {
			return fmt.Errorf("the rows of this file were imported as %q, and would count again; no event was sent\n  %s\n  hint: give "+
				"--name %s and the same options, or --again to count them again. (Kept in %s)",
				st.Name, strings.Join(differs, "\n  "), st.Name, path)
		}
	}
	return nil
}

// differ returns the terms under which the same row has other ids, or another time: now and then.
func (t terms) differ(job terms) (differs []string) {
	now, then := job.comparable(t), t.comparable(job)
	for _, f := range reflect.VisibleFields(now.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		if a, b := now.FieldByIndex(f.Index).Interface(), then.FieldByIndex(f.Index).Interface(); fmt.Sprint(a) != fmt.Sprint(b) {
			differs = append(differs, fmt.Sprintf("%s: %v, then %v", name, a, b))
		}
	}
	return differs
}

// comparable returns the terms without those that change no id: delimiter, tenant, and features that only one of two imports has.
func (t terms) comparable(other terms) reflect.Value {
	t.Delimiter, t.TenantColumn = 0, ""
	if t.Times != TimesShifted {
		t.Times = TimesAsTheyAre
	}
	t.Columns = slices.DeleteFunc(slices.Clone(t.Columns), func(c ColumnMapping) bool { return !hasFeature(other.Columns, c.Feature) })
	return reflect.ValueOf(t)
}

func hasFeature(columns []ColumnMapping, feature string) bool {
	return slices.ContainsFunc(columns, func(c ColumnMapping) bool { return c.Feature == feature })
}

// anchor returns the current time or, if the service already knows the file's first or
// last event, the earlier anchor: the state may be that of another file or on another
// machine, and a different anchor would make every event a conflict.
func (im *Importer) anchor(ctx context.Context, job Job, s scan) (*time.Time, error) {
	ids := job.ids()
	for _, row := range []*usageRow{s.first, s.last} {
		at, err := im.timeOf(ctx, ids, row)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusForbidden {
			im.Report("The key lacks usage:read, so an earlier run of this import cannot be found: it starts as a new one.")
			break
		}
		if err != nil {
			return nil, err
		}
		if !at.IsZero() {
			im.Report("The service knows events of %q: its times continue.", job.Name)
			anchor := s.latest.Add(at.Sub(row.at)).UTC()
			return &anchor, nil
		}
	}
	now := im.Now().UTC().Truncate(time.Microsecond)
	return &now, nil
}

// timeOf returns the time under which the service knows a row, zero if it does not.
func (im *Importer) timeOf(ctx context.Context, ids *eventIDs, row *usageRow) (time.Time, error) {
	id, err := ids.first(row)
	if err != nil {
		return time.Time{}, err
	}
	raw, err := im.Client.Get(ctx, client.Path("usage", "events", id), nil)
	if p, ok := errors.AsType[*client.Problem](err); ok && p.Status == http.StatusNotFound {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("ask for an event of the import: %w", err)
	}
	var receipt struct {
		Payload struct{ Timestamp time.Time }
	}
	if err := json.Unmarshal(raw, &receipt); err != nil || receipt.Payload.Timestamp.IsZero() {
		return time.Time{}, fmt.Errorf("the receipt of event %s has no time: %s", id, raw)
	}
	return receipt.Payload.Timestamp, nil
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
