package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child process that is reaped as soon as it ends. err may be read once done is closed.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// startProcess starts cmd in its own process group, so that a Ctrl-C on the terminal reaches only this
// process, which keeps control of the shutdown order. If the system supports it, the child gets
// onParentDeath when this process ends, also after kill -9.
func startProcess(cmd *exec.Cmd, user account, onParentDeath syscall.Signal) (*process, error) {
	cmd.SysProcAttr = childAttributes(user, onParentDeath)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run keeps one operating system thread for the child's lifetime: the kernel's parent death signal
// follows the thread that forked, not the process, and the Go runtime may end threads.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop sends the signals in turn. It sends the next one if the child has not ended within grace, or if
// ctx has ended, and waits until the child has ended.
func (p *process) stop(ctx context.Context, grace time.Duration, signals ...syscall.Signal) {
	for _, sig := range signals {
		// An error means that the process has ended already; done reports it.
		_ = p.cmd.Process.Signal(sig)
		select {
		case <-p.done:
			return
		case <-ctx.Done():
		case <-time.After(grace):
		}
		ctx = context.WithoutCancel(ctx)
		grace = min(grace, 5*time.Second)
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// runTool runs a program to its end and returns its output. The end of ctx kills its whole process group.
func runTool(ctx context.Context, user account, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := startProcess(cmd, user, syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	<-p.done
	if p.err != nil {
		return out.String(), fmt.Errorf("%s: %w%s", name, p.err, excerpt(out.String()))
	}
	return out.String(), nil
}

// excerptBytes bounds the part of a program's output in an error.
const excerptBytes = 2000

func excerpt(output string) string {
	output = strings.TrimSpace(output)
	if output == "" {
		return ""
	}
	if len(output) > excerptBytes {
		output = "…" + output[len(output)-excerptBytes:]
	}
	return "\n" + output
}

// alive reports whether process pid runs with all words in its command line. The number alone could
// belong to another program by now.
func alive(pid int, words ...string) bool {
	if pid <= 1 || syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	line := commandLine(pid)
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// endStale ends a server that outlived an earlier process of ours.
func endStale(ctx context.Context, pid int, sig syscall.Signal, grace time.Duration, words ...string) error {
	deadline := time.Now().Add(grace)
	_ = syscall.Kill(pid, sig)
	for alive(pid, words...) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d of an earlier run to end: %w", pid, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// logRotateBytes bounds a server's log. A larger log is renamed at the next start.
const logRotateBytes = 16 << 20

// openLog opens a server's log for appending and returns its size.
func openLog(path string) (*os.File, int64, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > logRotateBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("rename the old log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	return f, info.Size(), nil
}

// logSince returns a server's log since offset, at most the last 64 KiB.
func logSince(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || offset > int64(len(b)) {
		return ""
	}
	b = b[offset:]
	if len(b) > 64<<10 {
		b = b[len(b)-64<<10:]
	}
	return string(b)
}
