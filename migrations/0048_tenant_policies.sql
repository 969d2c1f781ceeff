-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes an index and nothing else.
SET lock_timeout = 0;

-- The tenants whose periods are closed by a policy, in the order of the look for periods that are due.
DROP INDEX CONCURRENTLY IF EXISTS tenants_close_after;
CREATE INDEX CONCURRENTLY tenants_close_after ON tenants (id) WHERE close_after_hours IS NOT NULL;
RESET lock_timeout;
