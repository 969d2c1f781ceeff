-- +goose Up
-- Older instances go on beside it: it changes nothing in a database with events. In one without events, releases before it
-- do not start: they do not hold the version of the fold that the entitlements begin with.
--
-- entitlement_reads/v2 subtracts verdicts whose dead letter is discarded. A database with events gets it by a rebuild.
-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM log_heads WHERE position > 0) THEN
    ALTER TABLE projection_generations NO FORCE ROW LEVEL SECURITY;
    UPDATE projection_generations SET fold_version = 'entitlement_reads/v2'
    WHERE projection = 'entitlement_reads' AND generation = 1 AND fold_version = 'entitlement_reads/v1';
    ALTER TABLE projection_generations FORCE ROW LEVEL SECURITY;
  END IF;
END $$;
-- +goose StatementEnd
