package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// subject is the service under test: its own processes, with tenants.
type subject struct {
	target
	servers     *servers
	roles       string
	database    string // its name
	databaseURL string
	history     int64    // usage events that writeHistory wrote, which no consumer applied
	settings    []string // of the service, beside those that all subjects have

	instances []*instance
	stopped   sync.Once
	err       error
}

// instance is a process of the service.
type instance struct {
	cmd   *exec.Cmd
	url   string
	ended chan error
	tail  tail
}

// answersAt begins the line that serve prints when it is ready.
const answersAt = "The service answers at "

// serve starts the service on an empty database, with its own topics and sixteen tenants.
func (s *servers) serve(ctx context.Context, roles string) (*subject, error) {
	return s.serveMany(ctx, roles, 1, tenantSpec{feature: feature, tenants: tenantCount, spread: true})
}

// serveMany starts a number of instances that share database, topics and tenants.
func (s *servers) serveMany(ctx context.Context, roles string, instances int, with tenantSpec) (*subject, error) {
	s.served++
	name := fmt.Sprintf("bench_%d", s.served)
	address, err := s.newDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	sub := &subject{servers: s, roles: roles, database: name, databaseURL: address}
	sub.operator = "mp_op_" + rand.Text() + rand.Text()
	if err := sub.start(ctx, instances); err != nil {
		return nil, errors.Join(err, sub.stop())
	}
	if err := sub.seed(ctx, with); err != nil {
		return nil, errors.Join(err, sub.stop())
	}
	return sub, nil
}

func (s *subject) start(ctx context.Context, instances int) error {
	for range instances {
		p, err := startInstance(s.servers.cfg.Serve(ctx), s.environment())
		if err != nil {
			return err
		}
		s.instances, s.urls = append(s.instances, p), append(s.urls, p.url)
	}
	s.servers.meter.setService(s.pids()...)
	return nil
}

// restart stops the service and starts it with other settings, on the same database.
func (s *subject) restart(ctx context.Context, settings ...string) error {
	instances := len(s.instances)
	if err := s.stopInstances(); err != nil {
		return err
	}
	s.instances, s.urls, s.settings = nil, nil, settings
	return s.start(ctx, instances)
}

func (s *subject) pids() (list []int) {
	for _, p := range s.instances {
		list = append(list, p.cmd.Process.Pid)
	}
	return list
}

// startInstance starts a process and returns when it is ready.
func startInstance(cmd *exec.Cmd, env []string) (*instance, error) {
	p := &instance{cmd: cmd, ended: make(chan error, 1)}
	cmd.Env = env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("open the service's log: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	at := make(chan string, 1)
	go p.listen(out, at)
	select {
	case p.url = <-at:
		return p, nil
	case err := <-p.ended:
		return nil, fmt.Errorf("the service ended at its start: %w%s", err, p.tail.text())
	}
}

// listen keeps the last log lines of the service, and passes on its address.
func (p *instance) listen(out io.Reader, at chan<- string) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, found := strings.CutPrefix(lines.Text(), answersAt); found {
			at <- url
		} else {
			p.tail.add(lines.Text())
		}
	}
	p.ended <- p.cmd.Wait()
}

// stop ends the process by SIGTERM, as an operator does.
func (p *instance) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	select {
	case err := <-p.ended:
		return err
	case <-time.After(stopTime):
		_ = p.cmd.Process.Kill()
		return errors.Join(errors.New("the service did not stop within a minute"), <-p.ended)
	}
}

// environment has no settings of the service except those set here.
func (s *subject) environment() []string {
	return append(append(ownEnvironment(),
		"DATABASE_URL="+s.databaseURL, "KAFKA_BROKERS="+strings.Join(s.servers.broker.Brokers(), ","),
		"METERPLEX_PIPE=kafka", "METERPLEX_HTTP_ADDR=127.0.0.1:0", "METERPLEX_ROLES="+s.roles,
		"METERPLEX_TOPIC_PREFIX="+s.database+".", "METERPLEX_LOG_LEVEL=warn", "METERPLEX_BOOTSTRAP_OPERATOR_KEY="+s.operator),
		slices.Concat(s.servers.login, s.servers.cfg.Settings, s.settings)...)
}

// Sets reports whether the benchmark itself sets a setting of the service: where its servers are, and how it reaches it.
func Sets(name string) bool {
	return strings.HasPrefix(name, "DATABASE_") || strings.HasPrefix(name, "KAFKA_") ||
		slices.Contains([]string{"METERPLEX_PIPE", "METERPLEX_HTTP_ADDR", "METERPLEX_ROLES", "METERPLEX_TOPIC_PREFIX",
			"METERPLEX_BOOTSTRAP_OPERATOR_KEY", "METERPLEX_DATA_DIR"}, name)
}

func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "METERPLEX_") || strings.HasPrefix(v, "KAFKA_") || strings.HasPrefix(v, "DATABASE_")
	})
}

// stop ends all instances of the service, and drops its database: the next one needs the disk.
func (s *subject) stop() error {
	s.stopped.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		drop := "DROP DATABASE " + pgx.Identifier{s.database}.Sanitize() + " WITH (FORCE)"
		s.err = errors.Join(s.stopInstances(), s.servers.asAdmin(ctx, "postgres", drop))
	})
	return s.err
}

func (s *subject) stopInstances() error {
	s.servers.meter.setService()
	errs := make([]error, len(s.instances))
	_ = all(len(s.instances), func(i int) error {
		errs[i] = s.instances[i].stop()
		return nil
	})
	return errors.Join(errs...)
}

// logTail returns the last log lines of the instances.
func (s *subject) logTail() string {
	var words string
	for _, p := range s.instances {
		words += p.tail.text()
	}
	return words
}

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
	return "\nlast log lines of the service:\n" + strings.Join(t.lines, "\n")
}
