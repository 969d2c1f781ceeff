-- +goose Up
-- Which binaries may work on this database: those that know all migrations named here.
-- A migration after which older ones would go wrong, or make others go wrong, adds a row
-- for itself. One that only adds what they do not notice adds none, and they go on
-- beside those that know it. docs/upgrades.md.
CREATE TABLE required_migrations (
  migration bigint PRIMARY KEY,
  because   text NOT NULL -- what the older ones would do wrong
);
INSERT INTO required_migrations VALUES
  (10, 'they write the log''s rows whole, under names that are gone'),
  (11, 'they take what was withheld late for parked');
GRANT SELECT ON required_migrations TO meterplex_worker;
