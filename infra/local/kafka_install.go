package local

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const kafkaVersion = "4.3.1"

// kafkaChecksums has the SHA-256 of each of Kafka's jars, followed by the jar's path in a Maven
// repository.
//
//go:embed kafka-4.3.1-jars.sha256
var kafkaChecksums string

// kafkaPOM requires the broker, and the binding of slf4j 1.7 to log4j 2. Kafka is built against slf4j
// 1.7; with the binding for slf4j 2 its log stays empty.
const kafkaPOM = `<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>meterplex</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>` + kafkaVersion + `</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
`

func kafkaCache(cacheDir string) string { return filepath.Join(cacheDir, "kafka-"+kafkaVersion) }

func jarDir(cacheDir string) string { return filepath.Join(kafkaCache(cacheDir), "lib") }

// installKafka returns the paths of Kafka's jars in the order of the checksum file. It downloads them
// once and checks them at each start.
func installKafka(ctx context.Context, cacheDir string, log io.Writer) ([]string, error) {
	dir := kafkaCache(cacheDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	lib := jarDir(cacheDir)
	if !exists(lib) {
		if err := fetchKafka(ctx, cacheDir, lib, log); err != nil {
			return nil, err
		}
	}
	return checkJars(lib, kafkaChecksums)
}

func fetchKafka(ctx context.Context, cacheDir, lib string, log io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaFetch)
	defer cancel()
	l, err := waitLock(ctx, filepath.Join(kafkaCache(cacheDir), "lock"))
	if err != nil {
		return err
	}
	defer l.release()
	if exists(lib) {
		return nil
	}
	if _, err := findMaven(); err != nil {
		return err
	}
	note(log, "Downloading Apache Kafka %s (43 MB, only once) into %s.", kafkaVersion, lib)
	tmp, err := os.MkdirTemp(kafkaCache(cacheDir), "new-")
	if err != nil {
		return fmt.Errorf("create a download folder: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), []byte(kafkaPOM), 0o644); err != nil {
		return fmt.Errorf("write the download list: %w", err)
	}
	fetched := filepath.Join(tmp, "lib")
	if err := maven(ctx, cacheDir, tmp, "copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+fetched); err != nil {
		return fmt.Errorf("download Kafka: %w", err)
	}
	if _, err := checkJars(fetched, kafkaChecksums); err != nil {
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
		got, err := fileSHA256(jar)
		if err != nil {
			return nil, fmt.Errorf("%w: %w (remove %s to download them again)", ErrChanged, err, lib)
		}
		if got != sum {
			return nil, fmt.Errorf("%w: %s has SHA-256 %s, not %s (remove %s to download them again)", ErrChanged, jar, got, sum, lib)
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
			return nil, fmt.Errorf("%w: unexpected file %s (remove it)", ErrChanged, filepath.Join(lib, e.Name()))
		}
	}
	return jars, nil
}
