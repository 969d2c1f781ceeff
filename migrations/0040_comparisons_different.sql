-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes an index and nothing else.
SET lock_timeout = 0;

-- The comparisons that found a difference, which every instance counts each few seconds.
DROP INDEX CONCURRENTLY IF EXISTS push_comparisons_different;
CREATE INDEX CONCURRENTLY push_comparisons_different ON push_comparisons (month) WHERE total <> delivered;
RESET lock_timeout;
