package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

type object = map[string]any

// patience bounds each wait for a program or the service. What waits so long waits for ever.
const patience = 3 * time.Minute

// program is a running program of an SDK. Its methods may be called concurrently.
type program struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // ended, and all output read

	mu      sync.Mutex
	last    int                  // id of the last request
	waiting map[int]chan<- reply // by id
	said    bytes.Buffer         // to standard error
}

// reply is the answer of a program: the members, or an error.
type reply struct {
	line []byte
	err  error
}

// failure is an error that a program answered.
type failure struct {
	Code   string
	Status int
	Detail string
}

func (f *failure) Error() string { return fmt.Sprintf("%s (%d): %s", f.Code, f.Status, f.Detail) }

var errEnded = errors.New("the program has ended")

// newProgram starts the program of a language. It is killed at the end of the test.
func newProgram(t testing.TB, l Language) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(l.Command[0], l.Command[1:]...), done: make(chan struct{}), waiting: map[int]chan<- reply{}}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out, errs)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && p.text() != "" {
			t.Logf("the program wrote to standard error:\n%s", tail(p.text(), 4000))
		}
	})
	return p
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

func (p *program) read(out, errs io.Reader) {
	defer close(p.done)
	var wait sync.WaitGroup
	wait.Go(func() {
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			p.mu.Lock()
			p.said.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
		}
	})
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		p.answered(line)
	}
	wait.Wait()
	_ = p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, to := range p.waiting {
		to <- reply{err: errEnded}
		delete(p.waiting, id)
	}
	p.waiting = nil
}

func (p *program) answered(line []byte) {
	var head struct {
		ID    int
		Error *failure
	}
	if err := json.Unmarshal(line, &head); err != nil {
		p.t.Errorf("the program wrote %q: %v", line, err)
		return
	}
	p.mu.Lock()
	to := p.waiting[head.ID]
	delete(p.waiting, head.ID)
	p.mu.Unlock()
	if to == nil {
		p.t.Errorf("the program answered what was not asked: %s", line)
		return
	}
	if head.Error != nil {
		to <- reply{err: head.Error}
		return
	}
	to <- reply{line: line}
}

// begin writes a request. Its answer arrives in the channel.
func (p *program) begin(do string, members object) <-chan reply {
	to := make(chan reply, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		to <- reply{err: errEnded}
		return to
	}
	p.last++
	request := maps.Clone(members)
	if request == nil {
		request = object{}
	}
	request["do"], request["id"] = do, p.last
	line, err := json.Marshal(request)
	if err != nil {
		to <- reply{err: err}
		return to
	}
	p.waiting[p.last] = to
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		delete(p.waiting, p.last)
		to <- reply{err: errEnded}
	}
	return to
}

// call writes a request and reads its answer into out, unless out is nil.
func (p *program) call(do string, members object, out any) error {
	select {
	case r := <-p.begin(do, members):
		if r.err != nil || out == nil {
			return r.err
		}
		if err := json.Unmarshal(r.line, out); err != nil {
			return fmt.Errorf("%s answers %s: %w", do, r.line, err)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s is not answered within %s", do, patience)
	}
}

// must is call, and ends the test at an error.
func (p *program) must(do string, members object, out any) {
	p.t.Helper()
	if err := p.call(do, members, out); err != nil {
		p.t.Fatalf("%s: %v", do, err)
	}
}

// refused calls, and requires an error with a code.
func (p *program) refused(code, do string, members object) *failure {
	p.t.Helper()
	err := p.call(do, members, nil)
	f := new(failure)
	if !errors.As(err, &f) || f.Code != code {
		p.t.Fatalf("%s: %v, want the error %s", do, err, code)
	}
	return f
}

// kill ends the program as a crash does, and waits for its end.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// signal sends a signal.
func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ends closes the standard input and waits until the program ends by itself.
func (p *program) ends() {
	p.t.Helper()
	_ = p.in.Close()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the program still runs after the end of its input")
	}
}

// text is what the program wrote to standard error.
func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Clone(p.said.String())
}
