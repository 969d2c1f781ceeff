package localkafka

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

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// launch starts the broker and waits until it answers. Ports that are 0 are chosen, and chosen again if
// another program takes them meanwhile.
func (k *Broker) launch(ctx context.Context, given brokerPorts) error {
	return child.Retry(ctx, func() error {
		ports, err := k.choosePorts(given)
		if err != nil {
			return err
		}
		return k.launchOnce(ctx, ports)
	})
}

func (k *Broker) launchOnce(ctx context.Context, ports brokerPorts) error {
	if err := k.writeConfig(ports); err != nil {
		return err
	}
	if err := k.ensureFormat(ctx, ports); err != nil {
		return err
	}
	log, offset, err := child.OpenLog(k.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, archive := k.command()
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := child.Start(cmd, k.user.Credential(), k.signalAtParentDeath())
	if err != nil {
		_ = os.Remove(archive)
		return err
	}
	k.mu.Lock()
	k.proc, k.ports, k.archive = proc, ports, archive
	k.mu.Unlock()
	if err := k.awaitReady(ctx, proc, ports); err != nil {
		crashed := proc.Exited() && crashOfJava(proc.Err())
		proc.Stop(context.WithoutCancel(ctx), 0, syscall.SIGKILL)
		_ = os.Remove(archive)
		return k.explain(err, child.LogSince(k.logFile(), offset), crashed && k.dropArchive())
	}
	return child.RememberPort(k.portFile(), ports.broker)
}

// signalAtParentDeath is the signal that a broker gets when this process dies. The last brokers of a cluster could
// not shut down in order, because they ask the others first.
func (k *Broker) signalAtParentDeath() syscall.Signal {
	if len(k.quorum().Controllers) > 1 {
		return syscall.SIGKILL
	}
	return syscall.SIGTERM
}

// explain adds the broker's log, and marks errors that a retry may fix: another program took a port, a
// killed broker has not ended yet, or a possibly damaged class archive was removed.
func (k *Broker) explain(err error, logged string, fixed bool) error {
	if fixed || strings.Contains(logged, "Address already in use") || strings.Contains(logged, "Failed to acquire lock on file") {
		return fmt.Errorf("%w: %w%s", child.ErrTryAgain, err, child.Excerpt(logged))
	}
	return fmt.Errorf("%w; server log:%s", err, child.Excerpt(logged))
}

// jvmOptions sets a heap that is large enough for one node, the cheapest collector and compiler for a
// short run on few cores, and the class archive if there is one.
func (k *Broker) jvmOptions() []string {
	options := []string{
		"-cp", strings.Join(k.jars, string(os.PathListSeparator)),
		"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + log4jName, "-Dlog4j2.disableJmx=true",
		// One context of loggers for all classes: Kafka looks up some loggers for each partition, and would walk the stack for their
		// context.
		"-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.BasicContextSelector",
		k.mark(), "-Xlog:cds=off", "-Xlog:class+path=off",
	}
	if folder.Exists(k.archiveFile()) {
		options = append(options, "-XX:SharedArchiveFile="+k.archiveFile(), "-Xshare:auto")
	}
	return options
}

// mark identifies this data directory's broker among all Java processes.
func (k *Broker) mark() string { return "-Dmeterplex.kafka=" + k.dir }

// command also returns the file to which the broker writes its class archive if it is missing, else "". Java
// ignores an archive that does not match.
func (k *Broker) command() (cmd *exec.Cmd, archive string) {
	args := k.jvmOptions()
	if archive = k.newArchive(); archive != "" {
		args = append(args, "-XX:ArchiveClassesAtExit="+archive)
	}
	cmd = exec.Command(k.java.path, append(args, "kafka.Kafka", propertiesName)...)
	cmd.Dir, cmd.Env = k.home, javaEnv(k.user)
	return cmd, archive
}

func (k *Broker) awaitReady(ctx context.Context, proc *child.Process, ports brokerPorts) error {
	if err := folder.WriteFile(k.pidFile(), []byte(strconv.Itoa(proc.PID())+"\n"), 0o644); err != nil {
		return err
	}
	client, err := kgo.NewClient(append(k.login(),
		kgo.SeedBrokers(child.Address(ports.broker)),
		kgo.RequestRetries(0),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
	)...)
	if err != nil {
		return fmt.Errorf("create a client for the broker: %w", err)
	}
	defer client.Close()
	for !k.answers(ctx, client) {
		select {
		case <-proc.Done():
			return ErrExited
		case <-ctx.Done():
			return fmt.Errorf("wait for the broker: %w", ctx.Err())
		case <-time.After(25 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether the broker lists itself. Before that it accepts requests but creates no topics.
func (k *Broker) answers(ctx context.Context, client *kgo.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	// Ask this broker: the client may know the answer of another one.
	answer, err := client.SeedBrokers()[0].Request(ctx, request)
	return err == nil && slices.ContainsFunc(answer.(*kmsg.MetadataResponse).Brokers, func(b kmsg.MetadataResponseBroker) bool {
		return b.NodeID == int32(k.quorum().Node)
	})
}
