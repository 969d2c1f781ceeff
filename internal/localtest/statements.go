package localtest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements records the statements that a pool sends, without those of batches. The server's own statistics lag by
// seconds.
type Statements struct {
	mu    sync.Mutex
	sent  []string
	taken int
}

// Traced returns a pool like the given one, whose statements are recorded. It is closed when the test ends.
func Traced(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *Statements) {
	t.Helper()
	config, sent := pool.Config().Copy(), &Statements{}
	config.ConnConfig.Tracer = sent
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	return traced, sent
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Count returns how many statements contain a text; "": all of them.
func (s *Statements) Count(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.sent {
		if strings.Contains(sql, text) {
			n++
		}
	}
	return n
}

// Take returns the statements since the last call of Take.
func (s *Statements) Take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.sent[s.taken:]
	s.taken = len(s.sent)
	return append([]string(nil), since...)
}
