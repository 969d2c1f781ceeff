package localtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/infra/local"
)

// PostgresOf is a PostgreSQL of a major version. It belongs to the test alone, with its
// roles, and ends with it. The test is skipped if this version is not installed and cannot
// be fetched: without Maven, or on a platform that it is not published for.
func PostgresOf(t testing.TB, major int) *Server {
	t.Helper()
	servers.mu.Lock()
	dir := filepath.Join(dataDir(t), fmt.Sprintf("postgres-%d-%s", major, random()))
	servers.mu.Unlock()
	p, err := local.StartPostgres(context.Background(), local.PostgresConfig{
		DataDir: dir, Major: major, Settings: map[string]string{"shared_buffers": "32MB"},
	})
	if errors.Is(err, local.ErrNoMaven) || errors.Is(err, local.ErrNotPublished) {
		t.Skipf("PostgreSQL %d is not installed and cannot be fetched: %v", major, err)
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
