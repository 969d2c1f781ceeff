-- +goose Up
-- Older instances go on beside it: they are not listed.

-- The instances of the service, each with the time at which it last reported. An instance reports every few seconds, and writes its end if it is stopped.
-- seen_at is in no index, so that a report changes the row in place.
CREATE TABLE instances (
  id         text COLLATE "C" PRIMARY KEY,
  version    text NOT NULL,
  roles      text[] NOT NULL,
  started_at timestamptz NOT NULL,
  seen_at    timestamptz NOT NULL,
  ended_at   timestamptz
) WITH (fillfactor = 50);
GRANT SELECT, INSERT, UPDATE, DELETE ON instances TO meterplex_worker;
