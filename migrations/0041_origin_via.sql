-- +goose Up
-- Stop all instances first. No event names a way before it, so there is nothing to fill: the default is a constant, which rewrites no row, and the log
-- itself is not changed. Only the index of the origins is built again: a million origins take seconds.
INSERT INTO required_migrations VALUES (41, 'they would publish events of the console without the member via');

-- The way by which an actor acted: '' is the API, 'console' the console.
ALTER TABLE log_origins
  ADD COLUMN via text COLLATE "C" NOT NULL DEFAULT '' CHECK (via ~ '^([a-z][a-z0-9-]{0,31})?$'),
  DROP CONSTRAINT log_origins_values,
  ADD CONSTRAINT log_origins_values UNIQUE (actor_type, actor_id, service, instance, commit, vocabulary, residency, via);
GRANT SELECT (via) ON log_origins TO meterplex_tenant;
