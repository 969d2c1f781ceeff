package localkafka

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// ensureFormat creates the broker's data directory if it is missing, under a temporary name, and then
// renames it.
func (k *Broker) ensureFormat(ctx context.Context, ports brokerPorts) error {
	meta := filepath.Join(k.Dir(), metaName)
	if content, err := os.ReadFile(meta); err == nil {
		if !strings.Contains(string(content), "\nnode.id=") || !strings.Contains(string(content), "\ncluster.id=") {
			return fmt.Errorf("%w: %s names no node.id and cluster.id", ErrDamaged, meta)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	const tmpName = "data.new"
	tmp := filepath.Join(k.home, tmpName)
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove the files of a failed start: %w", err)
	}
	// Remove removes only an empty directory: topics without meta.properties are a loss that must be
	// noticed.
	if err := os.Remove(k.Dir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no %s: %w", ErrDamaged, meta, err)
	}
	err := k.copyFormat(tmp)
	if err != nil {
		err = k.formatByTool(ctx, ports, tmpName)
	}
	if err != nil {
		return fmt.Errorf("format the broker's data directory: %w", err)
	}
	if err := os.Rename(tmp, k.Dir()); err != nil {
		return fmt.Errorf("rename the new data directory: %w", err)
	}
	return nil
}

// clusterOf is the id of a new broker's cluster.
func (k *Broker) clusterOf() string { return cmp.Or(k.quorum().ID, ClusterID()) }

// The files of a new data directory.
const metaName, checkpointName = "meta.properties", "bootstrap.checkpoint"

// checkpointFile keeps what the tool of Kafka writes into bootstrap.checkpoint, after the SHA-256 of it: the levels of the features, which
// are the same for each broker of a version. The other file names the broker. A run of the tool costs half as much as the start of a
// broker.
func (k *Broker) checkpointFile() string {
	return filepath.Join(k.program, "format")
}

// copyFormat makes a data directory like one that the tool made before.
func (k *Broker) copyFormat(dir string) error {
	kept, err := os.ReadFile(k.checkpointFile())
	if err != nil {
		return err
	}
	sum, checkpoint := kept[:min(sha256.Size, len(kept))], kept[min(sha256.Size, len(kept)):]
	if got := sha256.Sum256(checkpoint); len(checkpoint) == 0 || !bytes.Equal(sum, got[:]) {
		return fmt.Errorf("%w: %s", download.ErrChanged, k.checkpointFile())
	}
	meta := fmt.Sprintf("version=1\ncluster.id=%s\ndirectory.id=%s\nnode.id=%d\n", k.clusterOf(), ClusterID(), k.quorum().Node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err = errors.Join(folder.WriteFile(filepath.Join(dir, checkpointName), checkpoint, 0o644),
		folder.WriteFile(filepath.Join(dir, metaName), []byte(meta), 0o644), k.user.ChownAll(dir))
	if err != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// formatByTool lets the tool of Kafka make a data directory in the broker's, and keeps what other brokers can use of it.
func (k *Broker) formatByTool(ctx context.Context, ports brokerPorts, name string) error {
	const file = "format.properties"
	if err := k.write(file, k.properties(ports, name)); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(k.home, file))
	dir := filepath.Join(k.home, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := k.user.Chown(dir); err != nil {
		return err
	}
	err := k.format(ctx, file)
	if err != nil && ctx.Err() == nil && crashOfJava(err) && k.dropArchive() {
		err = k.format(ctx, file)
	}
	if err != nil {
		return err
	}
	// Without the copy the next broker runs the tool, too.
	if checkpoint, err := os.ReadFile(filepath.Join(dir, checkpointName)); err == nil && len(checkpoint) > 0 {
		sum := sha256.Sum256(checkpoint)
		_ = folder.WriteFile(k.checkpointFile(), append(sum[:], checkpoint...), 0o644)
	}
	return nil
}

func (k *Broker) format(ctx context.Context, propertiesName string) error {
	args := append(k.jvmOptions(), "kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", k.clusterOf(), "-c", propertiesName)
	_, err := child.Run(ctx, k.user.Credential(), k.home, javaEnv(k.user), k.java.path, args...)
	return err
}
