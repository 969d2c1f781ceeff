package node

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// TestP1_MessagesOfARestoredDumpAreDelivered: an instance gives the rows of PostgreSQL as the pipe transaction ids of a new server, when it
// starts, and while it runs. Messages of usage.commands are in no log.
func TestP1_MessagesOfARestoredDumpAreDelivered(t *testing.T) {
	w := newPipeWorld(t)
	running := w.open()
	w.publish(running, "a")
	w.passAll()
	w.publish(running, "b")
	w.restoreDump()
	w.publish(running, "c")
	w.waits(w.open(), 2, "at the start")

	w.passAll()
	w.publish(running, "d")
	w.restoreDump()
	w.publish(running, "e")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- running.tidy(ctx) }()
	w.newLife.Notify()
	w.waits(running, 2, "while the instance runs")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// pipeWorld is a database with the tables of the pipe.
type pipeWorld struct {
	*testing.T
	cfg     config.Config
	owner   *sql.DB
	newLife loop.Hint
}

func newPipeWorld(t *testing.T) *pipeWorld {
	t.Helper()
	w := &pipeWorld{T: t, newLife: loop.NewHint()}
	w.cfg = config.Config{DatabaseURL: localtest.Migrated(t, postgres.Migrate), Pipe: config.PipePostgres}
	var err error
	w.owner, err = postgres.OwnerDB(w.cfg.DatabaseURL)
	w.must(err)
	t.Cleanup(func() { w.owner.Close() })
	w.must(pgpipe.Ensure(t.Context(), pgpipe.Config{DB: w.owner}))
	return w
}

func (w *pipeWorld) must(err error) {
	w.Helper()
	must.OK(w, err)
}

func (w *pipeWorld) exec(statement string, args ...any) {
	w.Helper()
	_, err := w.owner.Exec(statement, args...)
	w.must(err)
}

// open opens the pipe as the start of an instance does.
func (w *pipeWorld) open() *pipe {
	w.Helper()
	p, err := openPipe(w.Context(), w.cfg, 4, w.newLife, slog.New(slog.DiscardHandler))
	w.must(err)
	w.Cleanup(func() { w.must(p.close()) })
	return p
}

func (w *pipeWorld) publish(p *pipe, value string) {
	w.Helper()
	record := events.Record{Topic: events.TopicUsageCommands, Value: []byte(value)}
	w.must(p.publisher.Publish(events.TopicUsageCommands.Name(), watermill.Outgoing(w.Context(), []events.Record{record})))
}

// passAll lets the consumer of usage.commands pass all rows.
func (w *pipeWorld) passAll() {
	w.Helper()
	w.exec(`INSERT INTO pipe_offsets_usage_commands (consumer_group, offset_acked, last_processed_transaction_id)
 SELECT $1, "offset", transaction_id FROM pipe_usage_commands ORDER BY transaction_id DESC, "offset" DESC LIMIT 1
 ON CONFLICT (consumer_group) DO UPDATE SET offset_acked = excluded.offset_acked,
 last_processed_transaction_id = excluded.last_processed_transaction_id`, events.GroupUsageCommands)
}

// restoreDump sets the transaction ids ahead of the server's, like those of a dump of a server that had issued more.
func (w *pipeWorld) restoreDump() {
	w.Helper()
	w.exec(
		`UPDATE pipe_usage_commands SET transaction_id = (transaction_id::text::bigint + 5000000)::text::xid8 WHERE transaction_id > '1'`)
	w.exec(`UPDATE pipe_offsets_usage_commands
		SET last_processed_transaction_id = (last_processed_transaction_id::text::bigint + 5000000)::text::xid8
		WHERE last_processed_transaction_id > '1'`)
}

// waits checks that the consumer of usage.commands has not passed n rows, soon.
func (w *pipeWorld) waits(p *pipe, n int64, when string) {
	w.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		waiting, err := p.waiting(w.Context())
		w.must(err)
		if waiting[0] == n {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s: %d messages are waiting, want %d", when, waiting[0], n)
		}
	}
}
