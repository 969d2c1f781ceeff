package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/infra/local/child"
)

// launch starts the postmaster and waits until it accepts connections. With port 0 a free port is chosen,
// and another one if a program takes it meanwhile.
func (p *Postgres) launch(ctx context.Context, port int) error {
	return child.Retry(ctx, func() error {
		chosen, err := p.choosePort(port)
		if err != nil {
			return err
		}
		return p.launchOnce(ctx, chosen)
	})
}

func (p *Postgres) portFile() string { return filepath.Join(p.dir, "port") }

func (p *Postgres) choosePort(port int) (int, error) {
	if port != 0 {
		return port, nil
	}
	return child.RememberedPort(p.portFile())
}

func (p *Postgres) launchOnce(ctx context.Context, port int) error {
	log, offset, err := child.OpenLog(p.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	// SIGINT is PostgreSQL's fast shutdown.
	proc, err := child.Start(p.command(port, log), p.user.Credential(), syscall.SIGINT)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.proc, p.port = proc, port
	p.mu.Unlock()
	if err := p.awaitReady(ctx, proc); err != nil {
		proc.Stop(context.WithoutCancel(ctx), 5*time.Second, syscall.SIGQUIT)
		return p.explain(err, child.LogSince(p.logFile(), offset))
	}
	return child.RememberPort(p.portFile(), port)
}

// explain adds the server's log, and marks errors that a retry may fix: another program took the port, or
// processes of a killed server have not ended yet.
func (p *Postgres) explain(err error, logged string) error {
	for _, temporary := range []string{
		"Address already in use",
		"could not bind",
		"pre-existing shared memory block",
		`lock file "postmaster.pid" already exists`,
	} {
		if strings.Contains(logged, temporary) {
			return fmt.Errorf("%w: %w%s", child.ErrTryAgain, err, child.Excerpt(logged))
		}
	}
	return fmt.Errorf("%w; server log:%s", err, child.Excerpt(logged))
}

func (p *Postgres) awaitReady(ctx context.Context, proc *child.Process) error {
	for {
		conn, err := p.connect(ctx)
		if err == nil {
			return conn.Close(ctx)
		}
		if permanentRefusal(err) {
			return fmt.Errorf("connect to the server: %w", err)
		}
		select {
		case <-proc.Done():
			return errors.New("the server exited during its start")
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w", ctx.Err())
		case <-time.After(15 * time.Millisecond):
		}
	}
}

// permanentRefusal reports whether the server answered with an error such as a wrong password. It returns
// false for temporary errors: no connection, cannot_connect_now (57P03) during recovery, or
// too_many_connections (53300).
func permanentRefusal(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && refusal.Code != "57P03" && refusal.Code != "53300"
}

func (p *Postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pgx.Connect(ctx, p.AdminURL())
}
