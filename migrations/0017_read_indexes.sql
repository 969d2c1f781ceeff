-- +goose NO TRANSACTION
-- +goose Up
-- Older instances go on beside it: it makes indexes and nothing else.
--
-- No expression may fail for any body: an append fails with it, for all events in its group. The server
-- cannot read \u0000 nor half of a surrogate pair as text. The service stores neither; such a body has NULL.
SET lock_timeout = 0;

-- What the list of usage of a rare status begins with: the rejections of a tenant in the order
-- of their events. Rows of other subjects do not pay for it.
DROP INDEX CONCURRENTLY IF EXISTS event_log_rejections;
CREATE INDEX CONCURRENTLY event_log_rejections ON event_log_rows (tenant_id, (split_part(dedupe_key, '/', 2)::bigint))
  WHERE subject = 3 AND dedupe_key ~ '^x/[0-9]{1,18}/';
DROP INDEX CONCURRENTLY IF EXISTS dead_letter_events_parked;
CREATE INDEX CONCURRENTLY dead_letter_events_parked ON dead_letter_events (generation, tenant_id)
  WHERE stage NOT IN ('INGESTION', 'VALIDATION');

-- The verdicts of a figure in the order of the log. In short (0010) a verdict's feature is its first
-- text and its period key the last; both are found in the text, which costs a third of
-- what reading it as JSON does. A hash of tenant, feature and period takes
-- 8 bytes instead of some 40; hashes are equal in all versions of the server, since tables
-- may be partitioned by them.
DROP INDEX CONCURRENTLY IF EXISTS event_log_verdicts;
CREATE INDEX CONCURRENTLY event_log_verdicts ON event_log_rows (
    uuid_hash_extended(tenant_id, hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', 2) WHEN body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'feature', body #>> '{validated,feature}') END COLLATE "C",
      hashtextextended(CASE WHEN body::text LIKE '[%' THEN split_part(body::text, '"', -2) WHEN body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE coalesce(body ->> 'periodKey', body #>> '{validated,periodKey}') END COLLATE "C", 0))), position)
  WHERE subject IN (2, 12);
DROP INDEX CONCURRENTLY IF EXISTS event_log_failures;
CREATE INDEX CONCURRENTLY event_log_failures ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'sourcePosition' END)) WHERE subject IN (10, 11);

-- The events of a producer's event and of a dead letter, but for recorded usage and its verdict, which
-- keys find: these rows are few.
DROP INDEX CONCURRENTLY IF EXISTS event_log_fates;
CREATE INDEX CONCURRENTLY event_log_fates ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '\\u(0000|d[89a-f])' THEN NULL
    ELSE coalesce(body ->> 'eventId', body #>> '{usage,eventId}', body #>> '{validated,eventId}',
      body #>> '{payload,eventId}', body #>> '{payload,usage,eventId}', body #>> '{payload,validated,eventId}') END))
  WHERE subject IN (3, 4, 6, 10, 11, 12);
DROP INDEX CONCURRENTLY IF EXISTS event_log_letters;
CREATE INDEX CONCURRENTLY event_log_letters ON event_log_rows (tenant_id, (CASE WHEN body::text ~* '\\u(0000|d[89a-f])' THEN NULL ELSE body ->> 'deadLetterId' END)) WHERE subject IN (13, 14, 15, 16);
RESET lock_timeout;
