package localkafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// archiveFile is the class archive (AppCDS), which halves the broker's start time.
func (k *Broker) archiveFile() string {
	of := k.java.key
	if k.cfg.Locked { // its logins load more classes
		of += "-locked"
	}
	if k.user.Drop { // each user's brokers load what they wrote
		of += fmt.Sprint("-", k.user.UID)
	}
	return filepath.Join(k.program, "used-classes-"+of+".jsa")
}

const (
	// exerciseTime bounds the use of a broker that is about to write the archive.
	exerciseTime = 10 * time.Second
	// archiveTime bounds the end of a broker that writes the archive, which took 3 s on an idle machine.
	archiveTime = 2 * time.Minute
)

// exercise uses a broker that is about to write the archive as the service does: the archive holds only classes that the broker has
// loaded, and one that was only started and stopped has loaded half of them. It leaves no topic and no group.
func (k *Broker) exercise(ctx context.Context) error {
	if k.proc.Exited() || len(k.quorum().Controllers) > 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, exerciseTime)
	defer cancel()
	name := "meterplex-exercise-" + ClusterID()
	client, err := kgo.NewClient(append(k.login(), kgo.SeedBrokers(child.Address(k.ports.broker)), kgo.ConsumeTopics(name),
		kgo.ConsumerGroup(name), kgo.DisableAutoCommit())...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, name); err != nil {
		return err
	}
	err = client.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("value")}).FirstErr()
	read := client.PollFetches(ctx)
	err = errors.Join(err, read.Err(), client.CommitRecords(ctx, read.Records()...))
	_, lagging := admin.Lag(ctx, name)
	_, configured := admin.DescribeTopicConfigs(ctx, name)
	err = errors.Join(err, lagging, configured, client.LeaveGroupContext(ctx))
	_, group := admin.DeleteGroup(ctx, name)
	_, topic := admin.DeleteTopic(ctx, name)
	return errors.Join(err, group, topic)
}

// crashOfJava reports whether a program ended by a signal that nobody sends. Kafka itself exits with a code, for example where its
// port is taken or its data are damaged, which says nothing about the archive: the brokers after it would have to write another one.
func crashOfJava(err error) bool {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		return false
	}
	status, ok := ended.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && !slices.Contains([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP},
		status.Signal())
}

// dropArchive removes the archive after Java has crashed, since Java crashes on a damaged archive. It
// reports whether there was one.
func (k *Broker) dropArchive() bool { return os.Remove(k.archiveFile()) == nil }

// newArchive makes the file to which a broker writes its class archive: the broker's user may not make it. It returns "" if there is an
// archive, or no folder for one.
func (k *Broker) newArchive() string {
	if folder.Exists(k.archiveFile()) {
		return ""
	}
	f, err := os.CreateTemp(k.program, filepath.Base(k.archiveFile())+".*.new")
	if err != nil {
		return ""
	}
	if errors.Join(f.Close(), k.user.Chown(f.Name())) != nil {
		_ = os.Remove(f.Name())
		return ""
	}
	return f.Name()
}

// saveArchive moves the archive that the ended broker wrote to its final folder, where its user cannot change it. A killed broker writes
// no archive; the next one tries again.
func (k *Broker) saveArchive() {
	if k.archive == "" {
		return
	}
	info, err := os.Stat(k.archive)
	if err == nil && info.Size() > 0 && errors.Join(os.Chown(k.archive, os.Geteuid(), os.Getegid()), os.Chmod(k.archive, 0o444)) == nil {
		_ = os.Rename(k.archive, k.archiveFile())
	}
	_ = os.Remove(k.archive)
	k.archive = ""
}
