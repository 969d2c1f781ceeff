// Package child runs a server, or a tool, as a child process of this one: its process, its port, its log.
// It knows no server.
package child

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child process that is reaped as soon as it ends. err may be read once done is closed.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts cmd in its own process group, so that a Ctrl-C on the terminal reaches only this
// process, which keeps control of the shutdown order. If the system supports it, the child gets
// onParentDeath when this process ends, also after kill -9. A nil user is the user of this process.
func Start(cmd *exec.Cmd, user *syscall.Credential, onParentDeath syscall.Signal) (*Process, error) {
	cmd.SysProcAttr = childAttributes(user, onParentDeath)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run keeps one operating system thread for the child's lifetime: the kernel's parent death signal
// follows the thread that forked, not the process, and the Go runtime may end threads.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
	}
}

// PID returns its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the error of a process that has ended.
func (p *Process) Err() error { return p.err }

// Exited reports whether it has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Stop sends the signals in turn. It sends the next one if the child has not ended within grace, or if
// ctx has ended, and waits until the child has ended.
func (p *Process) Stop(ctx context.Context, grace time.Duration, signals ...syscall.Signal) {
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

// Run runs a program to its end and returns its output. The end of ctx kills its whole process group.
func Run(ctx context.Context, user *syscall.Credential, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := Start(cmd, user, syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	<-p.done
	if p.err != nil {
		return out.String(), fmt.Errorf("%s: %w%s", name, p.err, Excerpt(out.String()))
	}
	return out.String(), nil
}

// excerptBytes bounds the part of a program's output in an error.
const excerptBytes = 2000

// Excerpt returns the end of a program's output for an error, on lines of its own.
func Excerpt(output string) string {
	output = strings.TrimSpace(output)
	if output == "" {
		return ""
	}
	if len(output) > excerptBytes {
		output = "…" + output[len(output)-excerptBytes:]
	}
	return "\n" + output
}

// Alive reports whether process pid runs with all words in its command line. The number alone could
// belong to another program by now.
func Alive(pid int, words ...string) bool {
	if pid <= 1 || syscall.Kill(pid, 0) == syscall.ESRCH {
		return false
	}
	line := CommandLine(pid)
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

// EndStale ends a server that outlived an earlier process of ours.
func EndStale(ctx context.Context, pid int, sig syscall.Signal, grace time.Duration, words ...string) error {
	deadline := time.Now().Add(grace)
	_ = syscall.Kill(pid, sig)
	for Alive(pid, words...) {
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
