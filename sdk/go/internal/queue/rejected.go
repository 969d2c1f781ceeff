package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func digits(text []byte, n int) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:n]
}

func rejectedName(eventID string, event []byte) string {
	return digits([]byte(eventID), 32) + "-" + digits(event, 16) + ".json"
}

// KeepRejected stores an event that was not counted until it is acknowledged.
func (d *Dir) KeepRejected(eventID string, event, content []byte) error {
	return d.keep("rejected", rejectedName(eventID, event), content)
}

// KeepDamaged stores an event that the service cannot read.
func (d *Dir) KeepDamaged(eventID string, event, content []byte) error {
	return d.keep("damaged", "event-"+rejectedName(eventID, event), content)
}

// Rejected returns the paths of the stored events that were not counted.
func (d *Dir) Rejected() (paths []string, err error) {
	folder := filepath.Join(d.Path, "rejected")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths, err
}

// Acknowledge removes the stored events with these eventIds.
func (d *Dir) Acknowledge(eventIDs []string) error {
	known := map[string]bool{}
	for _, id := range eventIDs {
		known[digits([]byte(id), 32)] = true
	}
	paths, err := d.Rejected()
	for _, path := range paths {
		if id, _, _ := strings.Cut(filepath.Base(path), "-"); known[id] {
			if failed := os.Remove(path); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
				err = failed
			}
		}
	}
	return err
}
