-- +goose Up
-- A row of the log keeps of its event's payload what its other columns do not say:
-- see events/stored.go, which writes these bodies and reads them for the relay and
-- the folds. Rows written before are whole, and stay so. What nobody reads any more
-- under its old name is found at once; payload and payload_hash of a row are functions
-- now, and written as the columns were: l.payload.
ALTER TABLE event_log RENAME COLUMN payload TO body;
ALTER TABLE event_log RENAME COLUMN payload_hash TO hash;
COMMENT ON COLUMN event_log.body IS 'the payload, in short; whole: l.payload';
COMMENT ON COLUMN event_log.hash IS 'NULL of recorded usage: that of the payload, canonical version 1; always: l.payload_hash';

-- In short is an array; a payload is an object. Members stand in it as they stood in
-- the payload, byte for byte. Written to be inlined: no SET, no STRICT.
-- +goose StatementBegin
CREATE FUNCTION whole_payload(subject smallint, key text, occurred_at timestamptz, body json) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN json_typeof(body) <> 'array' THEN body
    WHEN subject = 1 AND json_array_length(body) BETWEEN 2 AND 4 THEN (
      '{"amount":' || (body -> 0)::text || ',"eventId":"' || substr(key, 3) || '","feature":' || (body -> 1)::text
      || CASE WHEN json_typeof(body -> 2) <> 'null' THEN ',"metadata":' || (body -> 2)::text ELSE '' END
      || coalesce(',"source":' || (body -> 3)::text, '')
      || ',"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","type":"usage"}')::json
    WHEN subject = 2 AND json_array_length(body) = 6 THEN (
      '{"rawPosition":' || substr(key, 3) || ',"eventId":' || (body -> 2)::text || ',"feature":' || (body -> 1)::text
      || ',"amount":' || (body -> 0)::text
      || ',"count":1,"timestamp":"' || rtrim(rtrim(to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.')
      || 'Z","validatedSubscriptionId":' || (body -> 3)::text || ',"featureType":' || (body -> 4)::text
      || ',"periodKey":' || (body -> 5)::text || '}')::json
    ELSE body
  END
$$;
-- +goose StatementEnd
CREATE FUNCTION payload(l event_log_rows) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT whole_payload(l.subject, l.dedupe_key, l.occurred_at, l.body)';
CREATE FUNCTION payload(l event_log) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
  AS 'SELECT whole_payload(l.subject, l.dedupe_key, l.occurred_at, l.body)';
CREATE FUNCTION payload_hash(l event_log_rows) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS
  $$SELECT coalesce(l.hash, CASE WHEN l.subject = 1 THEN '\x01'::bytea || sha256(convert_to(l.payload::text, 'UTF8')) END)$$;
CREATE FUNCTION payload_hash(l event_log) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS
  $$SELECT coalesce(l.hash, CASE WHEN l.subject = 1 THEN '\x01'::bytea || sha256(convert_to(l.payload::text, 'UTF8')) END)$$;
REVOKE ALL ON FUNCTION whole_payload, payload(event_log_rows), payload(event_log), payload_hash(event_log_rows), payload_hash(event_log) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION whole_payload, payload(event_log_rows), payload(event_log), payload_hash(event_log_rows), payload_hash(event_log)
  TO meterplex_worker, meterplex_tenant;
