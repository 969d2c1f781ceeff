package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// subject is the service under test: another process, with tenants in it.
type subject struct {
	stand       *stand
	roles       string
	database    string // its name
	databaseURL string
	url         string
	operator    string
	tenants     []tenant

	cmd   *exec.Cmd
	ended chan error
	once  sync.Once
	err   error
	tail  tail
}

// answersAt is what serve says when it is ready.
const answersAt = "The service answers at "

// serve starts the service on an empty database, with topics of its own.
func (s *stand) serve(ctx context.Context, roles string) (*subject, error) {
	s.served++
	name := fmt.Sprintf("bench_%d", s.served)
	address, err := s.newDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	sub := &subject{
		stand: s, roles: roles, database: name, databaseURL: address,
		operator: "mp_op_" + rand.Text() + rand.Text(), ended: make(chan error, 1),
	}
	if err := sub.start(ctx); err != nil {
		return nil, err
	}
	s.meter.setService(sub.cmd.Process.Pid)
	if sub.tenants, err = seed(ctx, sub.url, sub.operator); err != nil {
		return nil, errors.Join(err, sub.stop())
	}
	return sub, nil
}

func (s *subject) start(ctx context.Context) error {
	s.cmd = s.stand.cfg.Serve(ctx)
	s.cmd.Env = s.environment()
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = stopTime
	out, err := s.cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("listen to the service: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start the service: %w", err)
	}
	at := make(chan string, 1)
	go s.listen(out, at)
	select {
	case s.url = <-at:
		return nil
	case err := <-s.ended:
		return fmt.Errorf("the service ended at its start: %w%s", err, s.lastWords())
	}
}

// listen keeps what the service logs last, and notes where it answers.
func (s *subject) listen(out io.Reader, at chan<- string) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, found := strings.CutPrefix(lines.Text(), answersAt); found {
			at <- url
		} else {
			s.tail.add(lines.Text())
		}
	}
	s.ended <- s.cmd.Wait()
}

// environment holds nothing of the service's settings but what is set here.
func (s *subject) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "METERPLEX_") && !strings.HasPrefix(v, "KAFKA_") && !strings.HasPrefix(v, "DATABASE_") {
			env = append(env, v)
		}
	}
	return append(env,
		"DATABASE_URL="+s.databaseURL, "KAFKA_BROKERS="+strings.Join(s.stand.broker.Brokers(), ","),
		"METERPLEX_PIPE=kafka", "METERPLEX_HTTP_ADDR=127.0.0.1:0", "METERPLEX_ROLES="+s.roles,
		"METERPLEX_TOPIC_PREFIX="+s.database+".", "METERPLEX_LOG_LEVEL=warn", "METERPLEX_BOOTSTRAP_OPERATOR_KEY="+s.operator)
}

// stop ends the service, as an operator would.
func (s *subject) stop() error {
	s.once.Do(func() {
		s.stand.meter.setService(0)
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case s.err = <-s.ended:
		case <-time.After(stopTime):
			_ = s.cmd.Process.Kill()
			s.err = errors.Join(errors.New("the service did not stop by itself"), <-s.ended)
		}
	})
	return s.err
}

// lastWords are what the service logged last.
func (s *subject) lastWords() string { return s.tail.text() }

// tail keeps the last lines of a log.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 10

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return ""
	}
	return "\nthe service logged last:\n" + strings.Join(t.lines, "\n")
}
