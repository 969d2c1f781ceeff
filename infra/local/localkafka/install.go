package localkafka

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

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

func cacheOf(cacheDir string) string { return filepath.Join(cacheDir, "kafka-"+Version) }

func jarDir(cacheDir string) string { return filepath.Join(cacheOf(cacheDir), "lib") }

// install returns the paths of Kafka's jars in the order of the checksum file. It downloads them
// once and checks them at each start.
func install(ctx context.Context, cacheDir string, log io.Writer) ([]string, error) {
	dir := cacheOf(cacheDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	lib := jarDir(cacheDir)
	if !folder.Exists(lib) {
		if err := fetch(ctx, cacheDir, lib, log); err != nil {
			return nil, err
		}
	}
	return checkJars(lib, checksums)
}

func fetch(ctx context.Context, cacheDir, lib string, log io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	l, err := folder.WaitLock(ctx, filepath.Join(cacheOf(cacheDir), "lock"))
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
	tmp, err := os.MkdirTemp(cacheOf(cacheDir), "new-")
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
	if _, err := checkJars(fetched, checksums); err != nil {
		return err
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
			return nil, fmt.Errorf("%w: %s has SHA-256 %s, not %s (remove %s to download them again)", download.ErrChanged, jar, got, sum, lib)
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
