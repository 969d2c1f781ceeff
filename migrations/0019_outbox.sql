-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it grants a right that they do not use, and makes indexes.
--
-- The relay deletes publications that are older than their topic's retention.
GRANT DELETE ON outbox_publications TO meterplex_worker;

-- Lists of withheld records, newest first, of a topic and of a tenant: a page reads the first rows of each
-- topic. The table has a row for each record that the broker refused, so that the indexes cost no append.
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS withheld_records_topic;
CREATE INDEX CONCURRENTLY withheld_records_topic ON withheld_records (topic, withheld_at, partition, position);
DROP INDEX CONCURRENTLY IF EXISTS withheld_records_tenant;
CREATE INDEX CONCURRENTLY withheld_records_tenant ON withheld_records (tenant_id, topic, withheld_at, partition, position);
RESET lock_timeout;
