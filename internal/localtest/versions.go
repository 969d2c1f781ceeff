package localtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/download"
)

// PostgresOf returns a PostgreSQL of a major version. Only this test uses the server and its roles; it
// ends with the test. The test is skipped if this version is not installed and cannot be downloaded:
// without Maven, or if it is not published for the platform.
func PostgresOf(t testing.TB, major int) *Server {
	t.Helper()
	servers.mu.Lock()
	dir := filepath.Join(dataDir(t), fmt.Sprintf("postgres-%d-%s", major, Unique()))
	servers.mu.Unlock()
	p, err := local.StartPostgres(context.Background(), local.PostgresConfig{
		// The servers of Maven lack LZ4: their compression is a tenth of the work of a migration.
		DataDir: dir, Major: major, Settings: map[string]string{"shared_buffers": "32MB", "wal_compression": "off"},
	})
	if errors.Is(err, download.ErrNoMaven) || errors.Is(err, local.ErrNotPublished) {
		t.Skipf("PostgreSQL %d is not installed and cannot be downloaded: %v", major, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Stop(context.Background()), os.RemoveAll(p.Dir())); err != nil {
			t.Error(err)
		}
	})
	return &Server{p}
}
