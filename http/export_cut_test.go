package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/tier"
)

// exportLines is the number of lines of a period whose export takes many pages.
const exportLines = 25_000

// reading opens an export on a connection of its own, and reads its head only.
func (w *testService) reading(key, path string) (conn net.Conn, answer *nethttp.Response) {
	w.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	w.Cleanup(func() { _ = conn.Close() })
	w.must(conn.(*net.TCPConn).SetReadBuffer(256 << 10))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path, key)
	w.must(err)
	answer, err = nethttp.ReadResponse(bufio.NewReaderSize(conn, 4096), nil)
	w.must(err)
	if answer.StatusCode != 200 {
		w.Fatalf("%s: %d", path, answer.StatusCode)
	}
	return conn, answer
}

// periodLines adds lines to the period of feature api_calls.
func (w *testService) periodLines(lines int) {
	w.Helper()
	w.exec(`INSERT INTO period_lines SELECT tenant_id, period_key, snapshot, 'f' || n % 7, ('00000000-0000-0000-0000-' || lpad(n::text, 12,
		'0'))::uuid, n, n, last_event_at
 FROM period_lines, generate_series(1, $1) n WHERE feature = 'api_calls'`, lines)
}

const exportsOpenSQL = `FROM pg_stat_activity WHERE datname = $1 AND application_name = 'test' AND xact_start IS NOT NULL`

// awaitExports waits until a number of exports is open. It has no time limit: the package has one.
func (w *testService) awaitExports(admin *pgx.Conn, want int) {
	w.Helper()
	for n := -1; n != want; time.Sleep(5 * time.Millisecond) {
		w.must(admin.QueryRow(w.Context(), `SELECT count(*) `+exportsOpenSQL, w.pool.Config().ConnConfig.Database).Scan(&n))
	}
}

// P8: an export that is cut in mid-stream never looks complete: its answer ends with an error, in each format. A client that is gone ends
// its transaction.
func TestP8_AnExportThatIsCutLooksIncomplete(t *testing.T) {
	tier.AtSize(t)
	w, a := newServiceWithAccount(t)
	w.accept(a, old("u1", 10))
	path := w.closed(a) + "/export"
	admin, err := pgx.Connect(t.Context(), localtest.Postgres(t).AdminURL()) // sees the sessions of all logins
	w.must(err)
	defer admin.Close(context.Background())
	w.periodLines(exportLines)
	for _, format := range []string{"json", "csv"} {
		conn, _ := w.reading(bootstrap, path+"?format="+format)
		w.awaitExports(admin, 1)
		w.must(conn.(*net.TCPConn).SetLinger(0)) // its end is an RST
		w.must(conn.Close())
		w.awaitExports(admin, 0)

		_, answer := w.reading(bootstrap, path+"?format="+format)
		w.awaitExports(admin, 1)
		var ended int
		w.must(admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) `+exportsOpenSQL,
			w.pool.Config().ConnConfig.Database).Scan(&ended))
		body, err := io.ReadAll(answer.Body)
		if ended != 1 || !errors.Is(err, io.ErrUnexpectedEOF) || json.Valid(body) {
			t.Errorf("%s: %d sessions were ended, and the answer ends after %d bytes with %v", format, ended, len(body), err)
		}
	}
}
