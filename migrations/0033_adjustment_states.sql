-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes an index and nothing else.
SET lock_timeout = 0;

-- The adjustments of all tenants in one state, such as the few that are approved, in the order of their ids.
DROP INDEX CONCURRENTLY IF EXISTS adjustments_states;
CREATE INDEX CONCURRENTLY adjustments_states ON adjustments (state, id);
RESET lock_timeout;
