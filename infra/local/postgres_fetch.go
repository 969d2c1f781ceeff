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

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
)

const (
	fetchedGroup    = "io.zonky.test.postgres"
	fetchedArtifact = "embedded-postgres-binaries-"
)

// release is a downloadable PostgreSQL: the known minor version of a major version, and the SHA-256 of
// its jar for each platform.
type release struct {
	major   int
	version string
	sha256  map[string]string
}

// releases returns the releases by major version. The last one is the default.
func releases() []release {
	return []release{
		{15, "15.18.0", map[string]string{ // published for only these two
			"linux-amd64":  "6490649298abbe834a969b57df53e66e056f76894054a8f32f7a56f33abe0087",
			"darwin-amd64": "bf4ca4521474ab0ef31672de5e48f194a423770f1f668b0356bb69e166253707",
		}},
		{16, "16.14.0", map[string]string{
			"linux-amd64":    "3278331b124b46fb9f8bea30c7ff3bd6227a3934dad38a6ddb625eb7dcfa8ca8",
			"linux-arm64v8":  "482f5ccdb15f68f4bfe524a5b9df734e169db9d1d29c32a513af44ac9efc127a",
			"darwin-amd64":   "9d082281befccc05f6c25dc0dd196382871543422f3ce850fb46cb035d38616a",
			"darwin-arm64v8": "d5d84a7e5103ade5557898fcf51affae69778be559bf9ba44819714c0d68e541",
		}},
		{17, "17.10.0", map[string]string{
			"linux-amd64":    "a6c44794a7a258621b8cb98c196bf621cdd705d9fa73c3628166b658c419877a",
			"linux-arm64v8":  "47aa73724470a8bdb5e68e3978c1f07c577ab7a5c23b97b84f99d7e165f4876f",
			"darwin-amd64":   "667a0eea70157656649417777af452148f6c79ae3654b2cd057a37fd701bd9e9",
			"darwin-arm64v8": "b8c73288326af937b632208110b1d629c404ebef7519f8bcc7fd72404c68a36a",
		}},
		{18, "18.4.0", map[string]string{
			"linux-amd64":    "401d4e69baba9072d3772607710df0d47b39a7632c6b01b2a5f5d85a9514e212",
			"linux-arm64v8":  "a9ec284923b9a7d2db41509bfb88c3d0eeb9f4aa5e2b29ea0aac5e8dbaf4c335",
			"darwin-amd64":   "68381ed1488edd337345c6c4bc6ae0c823832a4dd7af8b04656ee5c218c291b5",
			"darwin-arm64v8": "ab698c4486a795d2aa8a158b3a41e1201a77e7ff72a6255094cd5900080853c2",
		}},
	}
}

// Majors returns the supported major versions, oldest first.
func Majors() (majors []int) {
	for _, r := range releases() {
		majors = append(majors, r.major)
	}
	return majors
}

// platform returns this machine's platform as in artifact names.
func platform() string {
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	return runtime.GOOS + "-" + arch
}

// releaseOf returns the release of a major version for a platform. 0 means the newest.
func releaseOf(major int, platform string) (release, error) {
	all := releases()
	if major == 0 {
		major = all[len(all)-1].major
	}
	for _, r := range all {
		if r.major == major && r.sha256[platform] != "" {
			return r, nil
		}
	}
	return release{}, fmt.Errorf("%w: PostgreSQL %d for %s: install it", ErrNotPublished, major, platform)
}

func (r *release) artifact() string { return fetchedArtifact + platform() }
func (r *release) jar() string      { return r.artifact() + "-" + r.version + ".jar" }

// fetchPostgres returns the program folder of a release, and downloads it once. It is in the cache, or in
// a shared folder if the server's user cannot reach this user's cache.
func fetchPostgres(ctx context.Context, r release, cacheDir string, user account.Account, log io.Writer) (string, error) {
	base := filepath.Join(cacheDir, "postgresql")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	if !user.Reaches(base) {
		shared, err := user.Shared("postgresql")
		if err != nil {
			return "", err
		}
		base = shared
	}
	dir := filepath.Join(base, r.version)
	l, err := folder.WaitLock(ctx, filepath.Join(base, "lock"))
	if err != nil {
		return "", err
	}
	defer l.Release()
	if folder.Exists(dir) {
		return filepath.Join(dir, "bin"), nil
	}
	fmt.Fprintf(log, "Downloading PostgreSQL %s (15 to 30 MB, only once): no suitable version is installed.\n", r.version)
	if err := r.unpackInto(ctx, cacheDir, base, dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "bin"), nil
}

func (r *release) unpackInto(ctx context.Context, cacheDir, base, dir string) error {
	tmp, err := os.MkdirTemp(base, "new-")
	if err != nil {
		return fmt.Errorf("create a folder to unpack in: %w", err)
	}
	defer os.RemoveAll(tmp)
	jar, err := r.fetchJar(ctx, cacheDir, tmp)
	if err != nil {
		return err
	}
	tree := filepath.Join(tmp, "tree")
	if err := errors.Join(os.Mkdir(tree, 0o755), os.Chmod(tree, 0o755)); err != nil {
		return fmt.Errorf("create a folder to unpack in: %w", err)
	}
	if err := unpack(ctx, jar, tree); err != nil {
		return err
	}
	if err := os.Rename(tree, dir); err != nil {
		return fmt.Errorf("move the downloaded PostgreSQL: %w", err)
	}
	return nil
}

func (r *release) fetchJar(ctx context.Context, cacheDir, dir string) (string, error) {
	err := download.Maven(ctx, cacheDir, dir, "copy",
		"-Dartifact="+fetchedGroup+":"+r.artifact()+":"+r.version, "-DoutputDirectory="+dir)
	if err != nil {
		return "", err
	}
	jar := filepath.Join(dir, r.jar())
	sum, err := download.SHA256(jar)
	if err != nil {
		return "", fmt.Errorf("check the downloaded PostgreSQL: %w", err)
	}
	if want := r.sha256[platform()]; sum != want {
		return "", fmt.Errorf("%w: %s has SHA-256 %s, not %s", download.ErrChanged, r.jar(), sum, want)
	}
	return jar, nil
}

// unpack extracts the .txz from the jar and unpacks it with tar.
func unpack(ctx context.Context, jar, dir string) error {
	z, err := zip.OpenReader(jar)
	if err != nil {
		return fmt.Errorf("open the downloaded PostgreSQL: %w", err)
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
		return fmt.Errorf("unpack the downloaded PostgreSQL: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("unpack the downloaded PostgreSQL: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("unpack the downloaded PostgreSQL: %w", err)
	}
	return nil
}

func untar(ctx context.Context, txz, dir string) error {
	if _, err := exec.LookPath("xz"); err != nil && runtime.GOOS == "linux" {
		return errors.New("xz is needed to unpack PostgreSQL (Debian: apt install xz-utils)")
	}
	// If root unpacks, root owns the files: the server can read and run them, but not change them.
	_, err := child.Run(ctx, nil, dir, os.Environ(), "tar", "-xJf", txz, "-C", dir, "--no-same-owner")
	return err
}
