package local

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	fetchedVersion = "18.4.0"
	fetchedMajor   = 18
	fetchedGroup   = "io.zonky.test.postgres"
)

// artifact is a jar with PostgreSQL's programs for one platform.
type artifact struct{ name, sha256 string }

func (a artifact) jar() string { return a.name + "-" + fetchedVersion + ".jar" }

func platformArtifact(goos, goarch string) (artifact, error) {
	const name = "embedded-postgres-binaries-"
	switch goos + "/" + goarch {
	case "linux/amd64":
		return artifact{name + "linux-amd64", "401d4e69baba9072d3772607710df0d47b39a7632c6b01b2a5f5d85a9514e212"}, nil
	case "linux/arm64":
		return artifact{name + "linux-arm64v8", "a9ec284923b9a7d2db41509bfb88c3d0eeb9f4aa5e2b29ea0aac5e8dbaf4c335"}, nil
	case "darwin/amd64":
		return artifact{name + "darwin-amd64", "68381ed1488edd337345c6c4bc6ae0c823832a4dd7af8b04656ee5c218c291b5"}, nil
	case "darwin/arm64":
		return artifact{name + "darwin-arm64v8", "ab698c4486a795d2aa8a158b3a41e1201a77e7ff72a6255094cd5900080853c2"}, nil
	}
	return artifact{}, fmt.Errorf("no PostgreSQL to fetch for %s on %s: install PostgreSQL %d or later", goos, goarch, oldestPostgres)
}

// fetchPostgres returns the folder of fetched programs, fetching them once.
// They lie in the cache, or in a shared place where the server's user cannot
// reach the cache of this one.
func fetchPostgres(ctx context.Context, cacheDir string, who account, log io.Writer) (string, error) {
	base := filepath.Join(cacheDir, "postgresql")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	if !who.reaches(base) {
		shared, err := sharedPlace(who, "postgresql")
		if err != nil {
			return "", err
		}
		base = shared
	}
	dir := filepath.Join(base, fetchedVersion)
	l, err := waitLock(ctx, filepath.Join(base, "lock"))
	if err != nil {
		return "", err
	}
	defer l.release()
	if exists(dir) {
		return filepath.Join(dir, "bin"), nil
	}
	note(log, "No PostgreSQL %d or later is installed: PostgreSQL %s is fetched once (15 MB).", oldestPostgres, fetchedVersion)
	if err := unpackInto(ctx, cacheDir, base, dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "bin"), nil
}

func unpackInto(ctx context.Context, cacheDir, base, dir string) error {
	tmp, err := os.MkdirTemp(base, "new-")
	if err != nil {
		return fmt.Errorf("make a folder to unpack in: %w", err)
	}
	defer os.RemoveAll(tmp)
	jar, err := fetchJar(ctx, cacheDir, tmp)
	if err != nil {
		return err
	}
	tree := filepath.Join(tmp, "tree")
	if err := errors.Join(os.Mkdir(tree, 0o755), os.Chmod(tree, 0o755)); err != nil {
		return fmt.Errorf("make a folder to unpack in: %w", err)
	}
	if err := unpack(ctx, jar, tree); err != nil {
		return err
	}
	if err := os.Rename(tree, dir); err != nil {
		return fmt.Errorf("put the fetched PostgreSQL in its place: %w", err)
	}
	return nil
}

func fetchJar(ctx context.Context, cacheDir, dir string) (string, error) {
	a, err := platformArtifact(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	err = maven(ctx, cacheDir, dir, "copy",
		"-Dartifact="+fetchedGroup+":"+a.name+":"+fetchedVersion, "-DoutputDirectory="+dir)
	if err != nil {
		return "", err
	}
	jar := filepath.Join(dir, a.jar())
	sum, err := fileSHA256(jar)
	if err != nil {
		return "", fmt.Errorf("check the fetched PostgreSQL: %w", err)
	}
	if sum != a.sha256 {
		return "", fmt.Errorf("%w: %s has SHA-256 %s, not %s", ErrChanged, a.jar(), sum, a.sha256)
	}
	return jar, nil
}

// unpack takes the one .txz out of the jar and hands it to tar.
func unpack(ctx context.Context, jar, dir string) error {
	z, err := zip.OpenReader(jar)
	if err != nil {
		return fmt.Errorf("open the fetched PostgreSQL: %w", err)
	}
	defer z.Close()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		txz := filepath.Join(filepath.Dir(jar), "postgres.txz")
		if err := extract(f, txz); err != nil {
			return err
		}
		return untar(ctx, txz, dir)
	}
	return fmt.Errorf("no .txz in %s", jar)
}

func extract(f *zip.File, to string) error {
	in, err := f.Open()
	if err != nil {
		return fmt.Errorf("unpack the fetched PostgreSQL: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("unpack the fetched PostgreSQL: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("unpack the fetched PostgreSQL: %w", err)
	}
	return nil
}

func untar(ctx context.Context, txz, dir string) error {
	if _, err := exec.LookPath("xz"); err != nil && runtime.GOOS == "linux" {
		return errors.New("xz is needed to unpack it (Debian: apt install xz-utils)")
	}
	// Files become root's own where root unpacks: the server may read and run
	// them, not change them.
	_, err := runTool(ctx, self(), dir, os.Environ(), "tar", "-xJf", txz, "-C", dir, "--no-same-owner")
	return err
}
