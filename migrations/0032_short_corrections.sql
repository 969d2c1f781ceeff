-- +goose Up
-- Stop all instances first. The verdict on a correction or a retraction is stored in short, too: its JSON was parsed twice for the index of verdicts, and its
-- row was three times as long as that of other verdicts. Rows written before are whole, and stay so.
INSERT INTO required_migrations VALUES (32, 'they would publish verdicts on corrections in short');

-- As in 0010, and for a verdict that corrects (events/codec/stored.go): [amount, feature, eventId, subscription, featureType,
-- count, targetPosition, targetEventId, before, after, periodKey]. Its count is 0 for a correction, -1 for a retraction.
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
    WHEN subject = 2 AND json_array_length(body) IN (6, 11) THEN (
      '{"rawPosition":' || substr(key, 3) || ',"eventId":' || (body -> 2)::text || ',"feature":' || (body -> 1)::text
      || ',"amount":' || (body -> 0)::text || ',"count":' || CASE WHEN json_array_length(body) = 6 THEN '1' ELSE (body -> 5)::text END
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","validatedSubscriptionId":' || (body -> 3)::text || ',"featureType":' || (body -> 4)::text
      || ',"periodKey":' || (body -> -1)::text
      || CASE WHEN json_array_length(body) = 6 THEN '' ELSE
        ',"kind":"' || CASE (body -> 5)::text WHEN '0' THEN 'correction' ELSE 'retraction' END || '","targetPosition":' || (body -> 6)::text
        || ',"targetEventId":' || (body -> 7)::text || ',"before":' || (body -> 8)::text || ',"after":' || (body -> 9)::text END
      || '}')::json
    ELSE body
  END
$$;
-- +goose StatementEnd
