package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Session is a session of a login, for the checks of a start, which follow each other. Its first use opens it; so does
// one after the server ended it, e.g. while another instance migrated. Close ends it.
type Session struct {
	URL  string
	conn *pgx.Conn
}

// sessionAnswers bounds the wait for a sign of life of a session that was used before.
const sessionAnswers = 5 * time.Second

// use lends the session to a function.
func (s *Session) use(ctx context.Context, do func(conn *pgx.Conn) error) error {
	if s.conn != nil && !s.answers(ctx) {
		s.Close()
	}
	if s.conn == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	return do(s.conn)
}

func (s *Session) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sessionAnswers)
	defer cancel()
	return s.conn.Ping(ctx) == nil
}

func (s *Session) open(ctx context.Context) error {
	cc, err := connConfig(s.URL)
	if err != nil {
		return errors.New("the database URL cannot be read")
	}
	if _, given := cc.RuntimeParams["application_name"]; !given {
		cc.RuntimeParams["application_name"] = "meterplex start"
	}
	cc.RuntimeParams["synchronous_commit"] = "on" // as in the sessions of the pools
	if s.conn, err = pgx.ConnectConfig(ctx, cc); err != nil {
		return fmt.Errorf("reaching the database: %w", err)
	}
	return nil
}

// Close ends the session, if it is open.
func (s *Session) Close() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sessionAnswers)
	defer cancel()
	_ = s.conn.Close(ctx) // an error says that it has ended
	s.conn = nil
}
