-- +goose Up
-- Older instances go on beside it: they serve no console.

-- Sessions of the console. A row holds the hash of the token in the cookie, never the token. The key of a session is checked at each request.
CREATE TABLE console_sessions (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id     uuid NOT NULL,
  created_at timestamptz NOT NULL,
  used_at    timestamptz NOT NULL
);
CREATE INDEX console_sessions_used ON console_sessions (used_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON console_sessions TO meterplex_worker;

-- Links that sign in once. A row holds the hash of the link's token, and is deleted when the link is used.
CREATE TABLE console_links (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id     uuid NOT NULL,
  expires_at timestamptz NOT NULL
);
GRANT SELECT, INSERT, DELETE ON console_links TO meterplex_worker;
