package localkafka

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// Version is the version of the broker, whose jars are checked by their hashes.
const Version = "4.3.1"

// checksums has the SHA-256 of each of Kafka's jars, followed by the jar's path in a Maven
// repository.
//
//go:embed kafka-4.3.1-jars.sha256
var checksums string

// pom requires the broker, and the binding of slf4j 1.7 to log4j 2. Kafka is built against slf4j
// 1.7; with the binding for slf4j 2 its log stays empty.
const pom = `<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>meterplex</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>` + Version + `</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
`

// programDir returns the folder of Kafka's jars and class archives: in the cache, or in a shared folder if the broker's user cannot reach
// this user's cache.
func programDir(cacheDir string, user account.Account) (string, error) {
	const name = "kafka-" + Version
	dir := filepath.Join(cacheDir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	if user.Reaches(dir) {
		return dir, nil
	}
	return user.Shared(name)
}

func jarDir(program string) string { return filepath.Join(program, "lib") }

// install returns the paths of Kafka's jars in the order of the checksum file. It downloads them
// once and checks them at each start.
func install(ctx context.Context, program, cacheDir string, log io.Writer) ([]string, error) {
	lib := jarDir(program)
	if !folder.Exists(lib) {
		if err := fetch(ctx, program, cacheDir, log); err != nil {
			return nil, err
		}
	}
	return checkJars(lib, checksums)
}

func fetch(ctx context.Context, program, cacheDir string, log io.Writer) error {
	lib := jarDir(program)
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	l, err := folder.WaitLock(ctx, filepath.Join(program, "lock"))
	if err != nil {
		return err
	}
	defer l.Release()
	if folder.Exists(lib) {
		return nil
	}
	if _, err := download.FindMaven(); err != nil {
		return err
	}
	fmt.Fprintf(log, "Downloading Apache Kafka %s (43 MB, only once) into %s.\n", Version, lib)
	tmp, err := os.MkdirTemp(program, "new-")
	if err != nil {
		return fmt.Errorf("create a download folder: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), []byte(pom), 0o644); err != nil {
		return fmt.Errorf("write the download list: %w", err)
	}
	fetched := filepath.Join(tmp, "lib")
	if err := download.Maven(ctx, cacheDir, tmp, "copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+fetched); err != nil {
		return fmt.Errorf("download Kafka: %w", err)
	}
	jars, err := checkJars(fetched, checksums)
	if err != nil {
		return err
	}
	err = os.Chmod(fetched, 0o755) // regardless of the umask: the broker may run as another user
	for _, jar := range jars {
		err = errors.Join(err, os.Chmod(jar, 0o644))
	}
	if err != nil {
		return fmt.Errorf("open the downloaded Kafka to all users: %w", err)
	}
	if err := os.Rename(fetched, lib); err != nil {
		return fmt.Errorf("move the downloaded Kafka: %w", err)
	}
	return nil
}

// checkJars compares a folder with the pinned checksums: it must contain each pinned jar unchanged, and
// no other file.
func checkJars(lib, checksums string) ([]string, error) {
	pinned := map[string]bool{}
	var jars []string
	for line := range strings.Lines(checksums) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			continue
		}
		jar := filepath.Join(lib, path.Base(name))
		got, err := download.SHA256(jar)
		if err != nil {
			return nil, fmt.Errorf("%w: %w (remove %s to download them again)", download.ErrChanged, err, lib)
		}
		if got != sum {
			return nil, fmt.Errorf("%w: %s has SHA-256 %s, not %s (remove %s to download them again)", download.ErrChanged, jar, got, sum,
				lib)
		}
		pinned[path.Base(name)] = true
		jars = append(jars, jar)
	}
	entries, err := os.ReadDir(lib)
	if err != nil {
		return nil, fmt.Errorf("read the downloaded Kafka: %w", err)
	}
	for _, e := range entries {
		if !pinned[e.Name()] {
			return nil, fmt.Errorf("%w: unexpected file %s (remove it)", download.ErrChanged, filepath.Join(lib, e.Name()))
		}
	}
	return jars, nil
}
