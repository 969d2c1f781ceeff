package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// oldestPostgres is the first major version with MERGE, lz4 WAL compression, and a public schema in which
// only its owner may create objects.
const oldestPostgres = 15

// binaries are the programs of a PostgreSQL installation.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

// findBinaries finds the system's programs, or downloads some. Existing data determine the major version.
func (p *Postgres) findBinaries(ctx context.Context) error {
	major, err := dataMajor(p.data())
	if err != nil {
		return err
	}
	if major == 0 {
		major = p.cfg.Major
	}
	candidates := systemBinDirs()
	if p.cfg.BinDir != "" {
		candidates = []string{p.cfg.BinDir}
	}
	for _, dir := range candidates {
		found, err := probe(ctx, dir, p.user)
		if err == nil && found.major >= oldestPostgres && (major == 0 || found.major == major) {
			p.bin = found
			return nil
		}
	}
	if p.cfg.BinDir != "" {
		return fmt.Errorf("no PostgreSQL %s that user %d can run in %s", wanted(major), p.user.UID, p.cfg.BinDir)
	}
	p.bin, err = fetchedBinaries(ctx, major, p.user, p.cfg.Log)
	if err == nil {
		return nil
	}
	if folder.Exists(p.data()) {
		return fmt.Errorf("the data in %s was written by PostgreSQL %d, which was not found (install it) and cannot be downloaded: %w",
			p.home, major, err)
	}
	return fmt.Errorf("no PostgreSQL %s found (install one, Debian: apt install postgresql), and none can be downloaded: %w", wanted(major),
		err)
}

// fetchedBinaries returns the downloaded programs of a major version. 0 means the newest.
func fetchedBinaries(ctx context.Context, major int, user account.Account, log io.Writer) (binaries, error) {
	r, err := releaseOf(major, platform())
	if err != nil {
		return binaries{}, err
	}
	dir, err := fetchPostgres(ctx, r, download.CacheDir(), user, log)
	if err != nil {
		return binaries{}, err
	}
	return probe(ctx, dir, user)
}

func wanted(major int) string {
	if major != 0 {
		return strconv.Itoa(major)
	}
	return strconv.Itoa(oldestPostgres) + " or later"
}

// dataMajor returns 0 if there is no cluster yet.
func dataMajor(data string) (int, error) {
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the data's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("read the data's version: %w", err)
	}
	return major, nil
}

// InstalledPostgres returns the program folders of installed PostgreSQL versions that can be run.
func InstalledPostgres(ctx context.Context) (dirs []string) {
	for _, dir := range systemBinDirs() {
		if found, err := probe(ctx, dir, account.OfServers()); err == nil && found.major >= oldestPostgres {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// systemBinDirs returns the usual folders of PostgreSQL: those from the PATH, then the others, newest
// first.
func systemBinDirs() []string {
	var dirs []string
	if initdb, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(initdb))
	}
	if config, err := exec.LookPath("pg_config"); err == nil {
		if out, err := exec.Command(config, "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/opt/homebrew/bin",
		"/usr/local/pgsql/bin",
		"/usr/local/bin",
	} {
		// The patterns are constant and well formed.
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return number(b) - number(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// number returns the first number in s, or 0.
func number(s string) int {
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	s = strings.TrimLeftFunc(s, notDigit)
	if end := strings.IndexFunc(s, notDigit); end >= 0 {
		s = s[:end]
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// probe runs the server's program as the server's user, which may be unable to reach it.
func probe(ctx context.Context, dir string, user account.Account) (binaries, error) {
	b := binaries{dir: dir}
	if !folder.Exists(b.path("postgres")) || !folder.Exists(b.path("initdb")) {
		return b, errors.New("no PostgreSQL in " + dir)
	}
	out, err := child.Run(ctx, user.Credential(), "/", serverEnv("/"), b.path("postgres"), "--version")
	if err != nil {
		return b, err
	}
	b.major = number(out)
	return b, nil
}
