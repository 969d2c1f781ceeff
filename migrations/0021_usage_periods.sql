-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes indexes and nothing else.
--
-- The figures of all tenants in a period, in the order of their pages: a page reads its own rows, of all features or
-- of one. No indexed column changes while a figure grows, so that its updates stay in its page (HOT).
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS usage_aggregates_period;
CREATE INDEX CONCURRENTLY usage_aggregates_period ON usage_aggregates (generation, period_key, tenant_id, feature, subscription_id);
DROP INDEX CONCURRENTLY IF EXISTS usage_aggregates_feature;
CREATE INDEX CONCURRENTLY usage_aggregates_feature ON usage_aggregates (generation, period_key, feature, tenant_id, subscription_id);
RESET lock_timeout;
