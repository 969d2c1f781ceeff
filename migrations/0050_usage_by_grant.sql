-- +goose Up
-- Stop all instances first. A verdict names the grant that it is charged by, and figures have sums by grant.
INSERT INTO required_migrations VALUES (50, 'they would publish verdicts with a grant in short, and fold figures without their grants');

-- As in 0032, and for verdicts with a grant, the member before the period (events/codec/stored.go).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION whole_payload(subject smallint, key text, occurred_at timestamptz, body json) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN json_typeof(body) <> 'array' THEN body
    WHEN subject = 1 AND json_array_length(body) BETWEEN 2 AND 4 THEN (
      '{"amount":' || (body -> 0)::text || ',"eventId":"' || substr(key, 3) || '","feature":' || (body -> 1)::text
      || CASE WHEN json_typeof(body -> 2) <> 'null' THEN ',"metadata":' || (body -> 2)::text ELSE '' END
      || coalesce(',"source":' || (body -> 3)::text, '')
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","type":"usage"}')::json
    WHEN subject = 2 AND json_array_length(body) IN (6, 7, 11, 12) THEN (
      '{"rawPosition":' || substr(key, 3) || ',"eventId":' || (body -> 2)::text || ',"feature":' || (body -> 1)::text
      || ',"amount":' || (body -> 0)::text || ',"count":' || CASE WHEN json_array_length(body) < 11 THEN '1' ELSE (body -> 5)::text END
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","validatedSubscriptionId":' || (body -> 3)::text || ',"featureType":' || (body -> 4)::text
      || ',"periodKey":' || (body -> -1)::text
      || CASE WHEN json_array_length(body) IN (7, 12) THEN ',"grant":' || (body -> -2)::text ELSE '' END
      || CASE WHEN json_array_length(body) < 11 THEN '' ELSE
        ',"kind":"' || CASE (body -> 5)::text WHEN '0' THEN 'correction' ELSE 'retraction' END || '","targetPosition":' || (body -> 6)::text
        || ',"targetEventId":' || (body -> 7)::text || ',"before":' || (body -> 8)::text || ',"after":' || (body -> 9)::text END
      || '}')::json
    ELSE body
  END
$$;
-- +goose StatementEnd

-- The sums of a figure by grant. The aggregator adds to them in the transaction of usage_aggregates, of the same generation, for the verdicts that
-- name a grant: if applied_count sums up to that of the figure, the rows are the whole figure.
CREATE TABLE usage_by_grant (
  generation      int      NOT NULL,
  partition       smallint NOT NULL,
  tenant_id       uuid     NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  subscription_id uuid     NOT NULL,
  grant_number    bigint   NOT NULL, -- position of the change of the subscription; -1: before the first
  amount          numeric  NOT NULL,
  event_count     bigint   NOT NULL,
  applied_count   bigint   NOT NULL,
  PRIMARY KEY (generation, tenant_id, period_key, feature, subscription_id, grant_number)
) WITH (fillfactor = 50);
ALTER TABLE usage_by_grant ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_by_grant FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_by_grant FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker ON usage_by_grant TO meterplex_worker USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_by_grant TO meterplex_worker;
GRANT SELECT ON usage_by_grant TO meterplex_tenant;
