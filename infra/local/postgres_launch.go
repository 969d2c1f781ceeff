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
)

// errTryAgain wraps a failed launch that another attempt may cure.
var errTryAgain = errors.New("try again")

// untilItPasses launches again as long as another attempt may cure what failed.
func untilItPasses(ctx context.Context, launch func() error) error {
	for {
		err := launch()
		if !errors.Is(err, errTryAgain) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// launch starts the postmaster and returns when it takes connections. With
// port 0 a free one is chosen, and another if somebody takes it meanwhile.
func (p *Postgres) launch(ctx context.Context, port int) error {
	return untilItPasses(ctx, func() error {
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
	return rememberedPort(p.portFile())
}

func (p *Postgres) launchOnce(ctx context.Context, port int) error {
	log, offset, err := openLog(p.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	// SIGINT is PostgreSQL's fast shutdown.
	proc, err := startProcess(p.command(port, log), p.who, syscall.SIGINT)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.proc, p.port = proc, port
	p.mu.Unlock()
	if err := p.awaitReady(ctx, proc); err != nil {
		proc.stop(context.WithoutCancel(ctx), 5*time.Second, syscall.SIGQUIT)
		return p.explain(err, logSince(p.logFile(), offset))
	}
	return rememberPort(p.portFile(), port)
}

// explain adds what the server logged, and says whether to try again: another
// program took the port, or processes of a killed server have not ended yet.
func (p *Postgres) explain(err error, logged string) error {
	for _, passing := range []string{
		"Address already in use",
		"could not bind",
		"pre-existing shared memory block",
		`lock file "postmaster.pid" already exists`,
	} {
		if strings.Contains(logged, passing) {
			return fmt.Errorf("%w: %w%s", errTryAgain, err, excerpt(logged))
		}
	}
	return fmt.Errorf("%w; its log says:%s", err, excerpt(logged))
}

func (p *Postgres) awaitReady(ctx context.Context, proc *process) error {
	for {
		conn, err := p.connect(ctx)
		if err == nil {
			return conn.Close(ctx)
		}
		if refusedForGood(err) {
			return fmt.Errorf("connect to the server: %w", err)
		}
		select {
		case <-proc.done:
			return errors.New("the server ended at its start")
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w", ctx.Err())
		case <-time.After(15 * time.Millisecond):
		}
	}
}

// refusedForGood tells an answer such as a wrong password from "not yet": no
// connection, or cannot_connect_now (57P03) while the server recovers.
func refusedForGood(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && refusal.Code != "57P03" && refusal.Code != "53300"
}

func (p *Postgres) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pgx.Connect(ctx, p.AdminURL())
}
