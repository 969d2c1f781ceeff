package commands

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// ConsoleSession is a session of the console. Its token is known only to the browser.
type ConsoleSession struct {
	KeyID uuid.UUID
	// KeyHash is the stored hash of the session's key; nil for a key that is not stored, as the bootstrap operator key.
	KeyHash   []byte
	CreatedAt time.Time
	UsedAt    time.Time
}

// ConsoleSessions stores the sessions of the console and the links that sign in once, by the SHA-256 of
// their tokens. Errors are ErrUnavailable.
type ConsoleSessions interface {
	// OpenSession stores a session that begins at a time.
	OpenSession(ctx context.Context, token [32]byte, key uuid.UUID, at time.Time) error
	// Session returns a session; nil, nil if there is none.
	Session(ctx context.Context, token [32]byte) (*ConsoleSession, error)
	// UseSession moves the time of a session's last use.
	UseSession(ctx context.Context, token [32]byte, at time.Time) error
	// EndSession deletes a session. It may be absent.
	EndSession(ctx context.Context, token [32]byte) error
	// EndSessions deletes the sessions that were last used, or created, before the given times, and
	// the links that expired before now.
	EndSessions(ctx context.Context, used, created, now time.Time) error
	// OpenLink stores a link that signs in once, as the holder of a key, before it expires.
	OpenLink(ctx context.Context, token [32]byte, key uuid.UUID, expires time.Time) error
	// UseLink deletes a link and returns its key; uuid.Nil if it is unknown, used or expired.
	UseLink(ctx context.Context, token [32]byte, now time.Time) (uuid.UUID, error)
}
