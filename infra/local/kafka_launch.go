package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// launch starts the broker and waits until it answers. Ports that are 0 are chosen, and chosen again if
// another program takes them meanwhile.
func (k *Kafka) launch(ctx context.Context, given kafkaPorts) error {
	return retryLaunch(ctx, func() error {
		ports, err := k.choosePorts(given)
		if err != nil {
			return err
		}
		return k.launchOnce(ctx, ports)
	})
}

func (k *Kafka) launchOnce(ctx context.Context, ports kafkaPorts) error {
	if err := k.writeConfig(ports); err != nil {
		return err
	}
	if err := k.ensureFormat(ctx, ports); err != nil {
		return err
	}
	log, offset, err := openLog(k.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, archive := k.command()
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := startProcess(cmd, self(), k.signalAtParentDeath())
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.proc, k.ports, k.archive = proc, ports, archive
	k.mu.Unlock()
	if err := k.awaitReady(ctx, proc, ports); err != nil {
		crashed := proc.exited() && crashOfJava(proc.err)
		proc.stop(context.WithoutCancel(ctx), 0, syscall.SIGKILL)
		return k.explain(err, logSince(k.logFile(), offset), crashed && k.dropArchive())
	}
	return rememberPort(k.portFile(), ports.broker)
}

// signalAtParentDeath is the signal that a broker gets when this process dies. The last brokers of a cluster could
// not shut down in order, because they ask the others first.
func (k *Kafka) signalAtParentDeath() syscall.Signal {
	if len(k.controllers) > 1 {
		return syscall.SIGKILL
	}
	return syscall.SIGTERM
}

// explain adds the broker's log, and marks errors that a retry may fix: another program took a port, a
// killed broker has not ended yet, or a possibly damaged class archive was removed.
func (k *Kafka) explain(err error, logged string, fixed bool) error {
	if fixed || strings.Contains(logged, "Address already in use") || strings.Contains(logged, "Failed to acquire lock on file") {
		return fmt.Errorf("%w: %w%s", errTryAgain, err, excerpt(logged))
	}
	return fmt.Errorf("%w; server log:%s", err, excerpt(logged))
}

// jvmOptions sets a heap that is large enough for one node, the cheapest collector and compiler for a
// short run on few cores, and the class archive if there is one.
func (k *Kafka) jvmOptions() []string {
	options := []string{
		"-cp", strings.Join(k.jars, string(os.PathListSeparator)),
		"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + log4jName, "-Dlog4j2.disableJmx=true",
		// One context of loggers for all classes: Kafka looks up some loggers for each partition, and would walk the stack for their context.
		"-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.BasicContextSelector",
		k.mark(), "-Xlog:cds=off", "-Xlog:class+path=off",
	}
	if exists(k.archiveFile()) {
		options = append(options, "-XX:SharedArchiveFile="+k.archiveFile(), "-Xshare:auto")
	}
	return options
}

// mark identifies this data directory's broker among all Java processes.
func (k *Kafka) mark() string { return "-Dmeterplex.kafka=" + k.dir }

// javaEnv makes Java read file names as UTF-8 in any locale.
func javaEnv() []string { return append(os.Environ(), "LC_ALL=C.UTF-8") }

// command also returns the file to which the broker writes its class archive if it is missing. Java
// ignores an archive that does not match.
func (k *Kafka) command() (cmd *exec.Cmd, archive string) {
	args := k.jvmOptions()
	if !exists(k.archiveFile()) {
		archive = fmt.Sprintf("%s.%d.%d.new", k.archiveFile(), os.Getpid(), k.node)
		args = append(args, "-XX:ArchiveClassesAtExit="+archive)
	}
	cmd = exec.Command(k.java.path, append(args, "kafka.Kafka", propertiesName)...)
	cmd.Dir, cmd.Env = k.dir, javaEnv()
	return cmd, archive
}

func (k *Kafka) awaitReady(ctx context.Context, proc *process, ports kafkaPorts) error {
	if err := writeFile(k.pidFile(), []byte(strconv.Itoa(proc.pid())+"\n"), 0o644); err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address(ports.broker)),
		kgo.RequestRetries(0),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
	)
	if err != nil {
		return fmt.Errorf("create a client for the broker: %w", err)
	}
	defer client.Close()
	for !k.answers(ctx, client) {
		select {
		case <-proc.done:
			return ErrExited
		case <-ctx.Done():
			return fmt.Errorf("wait for the broker: %w", ctx.Err())
		case <-time.After(25 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether the broker lists itself. Before that it accepts requests but creates no topics.
func (k *Kafka) answers(ctx context.Context, client *kgo.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	// Ask this broker: the client may know the answer of another one.
	answer, err := client.SeedBrokers()[0].Request(ctx, request)
	return err == nil && slices.ContainsFunc(answer.(*kmsg.MetadataResponse).Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == int32(k.node) })
}
