package commands

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Bounds of a session of the console, and of a link that signs in once.
const (
	ConsoleIdleTime    = 30 * time.Minute // since the last use
	ConsoleSessionTime = 12 * time.Hour   // since the begin
	ConsoleLinkTime    = 15 * time.Minute
)

// PortalPath is the begin of the path of a link for a tenant's people, before its token.
const PortalPath = "/console/portal/"

// ConsoleSession is a session of the console. Its token is known only to the browser.
type ConsoleSession struct {
	KeyID uuid.UUID
	// KeyHash is the stored hash of the session's key; nil for a key that is not stored, as the bootstrap operator key.
	KeyHash   []byte
	CreatedAt time.Time
	UsedAt    time.Time
}

// Ended reports whether a session has ended at a time.
func (s *ConsoleSession) Ended(at time.Time) bool {
	return at.Sub(s.UsedAt) >= ConsoleIdleTime || at.Sub(s.CreatedAt) >= ConsoleSessionTime
}

// ConsoleSessions stores the sessions of the console and the links that sign in once, by the SHA-256 of
// their tokens. Errors are ErrUnavailable or *Overloaded.
type ConsoleSessions interface {
	// OpenSession stores a session that begins at a time.
	OpenSession(ctx context.Context, token [32]byte, key uuid.UUID, at time.Time) error
	// Session returns a session, which may have ended; nil, nil if there is none.
	Session(ctx context.Context, token [32]byte) (*ConsoleSession, error)
	// UseSession moves the time of a session's last use.
	UseSession(ctx context.Context, token [32]byte, at time.Time) error
	// EndSession deletes a session. It may be absent.
	EndSession(ctx context.Context, token [32]byte) error
	// OpenLink stores a link that signs in once, as the holder of a key, before it expires.
	OpenLink(ctx context.Context, token [32]byte, key uuid.UUID, expires time.Time) error
	// UseLink deletes a link and returns its key; uuid.Nil if it is unknown, used or expired.
	UseLink(ctx context.Context, token [32]byte, now time.Time) (uuid.UUID, error)
}
