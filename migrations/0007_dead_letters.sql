-- +goose Up
-- Dead letters of one cause have one fingerprint: what a reason quotes, counts or
-- names by an id is left out of it. It follows from the row alone, so that it is
-- the same in every generation and no fold knows it. sha256 of text is immutable
-- in a database of one encoding, which the server does not know.
-- +goose StatementBegin
CREATE FUNCTION dead_letter_fingerprint(stage text, code text, consumer text, feature text, reason text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
  SELECT left(encode(sha256(convert_to(concat_ws(chr(31), stage, code, coalesce(consumer, ''), feature,
    regexp_replace(regexp_replace(regexp_replace(regexp_replace(lower(reason),
      '"(\\.|[^"\\])*"|(?<!\w)''[^'']*''(?!\w)|`[^`]*`', '?', 'g'),
      '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', '?', 'g'),
      '\m(0x)?[0-9a-f]*[0-9][0-9a-f]*\M', '#', 'g'),
      '[0-9]+', '#', 'g')), 'UTF8')), 'hex'), 32)
$$;
-- +goose StatementEnd

ALTER TABLE dead_letter_events ADD COLUMN fingerprint text COLLATE "C" NOT NULL
  GENERATED ALWAYS AS (dead_letter_fingerprint(stage, code, details ->> 'consumer', feature, reason)) STORED;
CREATE INDEX dead_letter_events_by_fingerprint ON dead_letter_events (generation, fingerprint, id);

-- What somebody has to look at: few, however many there ever were.
CREATE INDEX dead_letter_events_open ON dead_letter_events (generation, status, stage, id) WHERE status IN ('FAILED', 'RETRYING');
