-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes an index and nothing else.
--
-- The hours of a group, for pages of months of grouped features. Usage that is not grouped does not pay for it. It has no
-- generation: a query that compares the generation by IS NOT DISTINCT FROM can use this index and not the primary
-- key, which the server would prefer for a generation that its statistics do not know.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS usage_series_groups;
CREATE INDEX CONCURRENTLY usage_series_groups ON usage_series (tenant_id, feature, group_values, hour) WHERE group_values <> '{}';
RESET lock_timeout;
