// Package erasures keeps erasures of personal data in files outside the database, so that they are repeated after the restore of an older
// backup. It knows no database.
package erasures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/offboarding"
)

// Folder is a directory with a file for each tenant. It implements offboarding.ErasureFiles.
type Folder string

var _ offboarding.ErasureFiles = Folder("")

const suffix = ".json"

// Save implements offboarding.ErasureFiles. The file has its name only once its content is on the disk.
func (f Folder) Save(erasure offboarding.ErasureFile) error {
	text, err := json.Marshal(erasure)
	if err != nil {
		return fmt.Errorf("encoding an erasure: %w", err)
	}
	path := filepath.Join(string(f), erasure.TenantID.String()+suffix)
	if err := writeSynced(path+".new", append(text, '\n')); err != nil {
		return fmt.Errorf("saving an erasure in METERPLEX_ERASURES: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("saving an erasure in METERPLEX_ERASURES: %w", err)
	}
	folder, err := os.Open(string(f))
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	if err != nil {
		return fmt.Errorf("saving an erasure in METERPLEX_ERASURES: %w", err)
	}
	return nil
}

func writeSynced(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}

// List implements offboarding.ErasureFiles. A file that cannot be read is an error, with the list of the others.
func (f Folder) List() (list []offboarding.ErasureFile, err error) {
	entries, err := os.ReadDir(string(f))
	if err != nil {
		return nil, fmt.Errorf("reading METERPLEX_ERASURES: %w", err)
	}
	var faults error
	for _, entry := range entries {
		name, isErasure := strings.CutSuffix(entry.Name(), suffix)
		if !isErasure {
			continue
		}
		var erasure offboarding.ErasureFile
		text, err := fs.ReadFile(os.DirFS(string(f)), entry.Name())
		if err == nil {
			err = json.Unmarshal(text, &erasure)
		}
		if err == nil && (erasure.TenantID == uuid.Nil || erasure.TenantID.String() != name) {
			err = errors.New("it does not name the tenant of its file")
		}
		if err != nil {
			faults = errors.Join(faults, fmt.Errorf("reading %s of METERPLEX_ERASURES: %w", entry.Name(), err))
			continue
		}
		list = append(list, erasure)
	}
	return list, faults
}
