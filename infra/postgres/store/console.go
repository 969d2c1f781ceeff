package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/infra/postgres"
)

// ConsoleSessions implements commands.ConsoleSessions.
type ConsoleSessions struct {
	pool  postgres.Pool
	seats limited
}

// maxSessionReads is how many connections sessions may hold at once: a browser with a forged cookie causes a read, too.
const maxSessionReads = 2

// NewConsoleSessions returns the sessions of a database.
func NewConsoleSessions(pool postgres.Pool) *ConsoleSessions {
	return &ConsoleSessions{pool, make(limited, maxSessionReads)}
}

const (
	openSessionSQL = `INSERT INTO console_sessions (token_hash, key_id, created_at, used_at) VALUES ($1, $2, $3, $3)`
	sessionSQL     = `SELECT s.key_id, k.secret_hash, s.created_at, s.used_at FROM console_sessions s
		LEFT JOIN api_keys k ON k.id = s.key_id WHERE s.token_hash = $1`
	useSessionSQL = `UPDATE console_sessions SET used_at = greatest(used_at, $2) WHERE token_hash = $1`
	endSessionSQL = `DELETE FROM console_sessions WHERE token_hash = $1`
	openLinkSQL   = `INSERT INTO console_links (token_hash, key_id, expires_at) VALUES ($1, $2, $3)`
	useLinkSQL    = `DELETE FROM console_links WHERE token_hash = $1 RETURNING key_id, expires_at`
)

// OpenSession implements commands.ConsoleSessions.
func (s *ConsoleSessions) OpenSession(ctx context.Context, token [32]byte, key uuid.UUID, at time.Time) error {
	return s.exec(ctx, openSessionSQL, token[:], key, at)
}

// Session implements commands.ConsoleSessions.
func (s *ConsoleSessions) Session(ctx context.Context, token [32]byte) (*commands.ConsoleSession, error) {
	leave, err := s.seats.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var c commands.ConsoleSession
	err = s.pool.QueryRow(ctx, sessionSQL, token[:]).Scan(&c.KeyID, &c.KeyHash, &c.CreatedAt, &c.UsedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &c, Unavailable(err)
}

// UseSession implements commands.ConsoleSessions.
func (s *ConsoleSessions) UseSession(ctx context.Context, token [32]byte, at time.Time) error {
	return s.exec(ctx, useSessionSQL, token[:], at)
}

// EndSession implements commands.ConsoleSessions.
func (s *ConsoleSessions) EndSession(ctx context.Context, token [32]byte) error {
	return s.exec(ctx, endSessionSQL, token[:])
}

// OpenLink implements commands.ConsoleSessions.
func (s *ConsoleSessions) OpenLink(ctx context.Context, token [32]byte, key uuid.UUID, expires time.Time) error {
	return s.exec(ctx, openLinkSQL, token[:], key, expires)
}

// UseLink implements commands.ConsoleSessions. A link is deleted by the first use, so that two uses at the same time open one session.
func (s *ConsoleSessions) UseLink(ctx context.Context, token [32]byte, now time.Time) (key uuid.UUID, err error) {
	leave, err := s.seats.acquire(ctx)
	if err != nil {
		return uuid.Nil, err
	}
	defer leave()
	var expires time.Time
	err = s.pool.QueryRow(ctx, useLinkSQL, token[:]).Scan(&key, &expires)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !now.Before(expires) {
		return uuid.Nil, nil
	}
	return key, Unavailable(err)
}

func (s *ConsoleSessions) exec(ctx context.Context, sql string, args ...any) error {
	leave, err := s.seats.acquire(ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, err = s.pool.Exec(ctx, sql, args...)
	return Unavailable(err)
}
