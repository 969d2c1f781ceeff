-- +goose Up
-- The read models: folds of the log, each with its checkpoints, generations and rebuilds.

-- Where each consumer stands, for each generation and partition: everything of its source up to the position has been folded. Changed by compare-and-set in
-- the transaction of the fold.
-- joined: fed in one transaction with all that are joined in the partition, and so at the same position as they. What is not joined yet is a rebuild on its way.
-- serving: readers may be sent there; an event that fails in one that serves is a dead letter, and one that fails anywhere else breaks that generation alone.
CREATE TABLE consumer_checkpoints (
  consumer   text     NOT NULL,
  generation int      NOT NULL,
  partition  smallint NOT NULL,
  epoch      int      NOT NULL DEFAULT 0,
  position   bigint   NOT NULL DEFAULT 0,
  updated_at timestamptz NOT NULL DEFAULT now(),
  joined     boolean  NOT NULL DEFAULT true,
  serving    boolean  NOT NULL DEFAULT true,
  PRIMARY KEY (consumer, generation, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A generation is bound to a fold version when it is made. It holds what its scope says: one tenant (nil: all), one period ('': all).
CREATE TABLE projection_generations (
  projection   text NOT NULL,
  generation   int  NOT NULL,
  fold_version text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  tenant_id    uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  period_key   text COLLATE "C" NOT NULL DEFAULT '',
  broken       text,        -- why it is fed no longer
  dropped_at   timestamptz, -- it is fed no longer, and nobody is shown it
  purged       boolean NOT NULL DEFAULT false, -- its rows are gone
  PRIMARY KEY (projection, generation)
);

-- A pointer is a flip: of all that match a tenant and a period and are not undone, the latest says which generation is live. A promotion adds one row, a
-- rollback marks it undone: what was live at any flip can be asked for as long as it is kept.
CREATE TABLE projection_pointers (
  projection  text NOT NULL,
  tenant_id   uuid NOT NULL, -- nil: all tenants without a row of their own
  generation  int  NOT NULL,
  period_key  text COLLATE "C" NOT NULL DEFAULT '',
  flip        int  NOT NULL,
  undone_flip int,
  flipped_at  timestamptz NOT NULL DEFAULT now(),
  live        boolean NOT NULL DEFAULT true, -- neither undone nor wholly covered by a later one
  PRIMARY KEY (projection, flip)
);

INSERT INTO projection_generations (projection, generation, fold_version)
SELECT p, 1, p || '/v1' FROM unnest(ARRAY['usage_aggregates', 'entitlement_reads', 'dead_letter_events', 'usage_series', 'usage_refusals']) p;
INSERT INTO projection_pointers (projection, tenant_id, generation, flip)
SELECT projection, '00000000-0000-0000-0000-000000000000', 1, 1 FROM projection_generations;
INSERT INTO consumer_checkpoints (consumer, generation, partition)
SELECT c, 1, p
FROM unnest(ARRAY['meterplex-usage-validator', 'meterplex-usage-aggregator', 'meterplex-dead-letter-handler', 'meterplex-command-handler',
                  'meterplex-entitlement-reads', 'meterplex-usage-series', 'meterplex-usage-refusals']) c, generate_series(0, 31) p;

-- The generation that readers of a tenant's period see; as of a flip where one is given.
-- +goose StatementBegin
CREATE FUNCTION live_generation(of_projection text, of_tenant uuid, of_period text DEFAULT '', as_of int DEFAULT NULL) RETURNS int
LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
  SELECT p.generation FROM projection_pointers p
   WHERE p.projection = of_projection
     AND p.tenant_id IN (of_tenant, '00000000-0000-0000-0000-000000000000') AND p.period_key IN (of_period, '')
     AND CASE WHEN as_of IS NULL THEN p.undone_flip IS NULL
              ELSE p.flip <= as_of AND (p.undone_flip IS NULL OR p.undone_flip > as_of) END
   ORDER BY p.flip DESC LIMIT 1
$$;
-- +goose StatementEnd

-- How far a consumer is for one tenant.
-- decided: every event of the tenant recorded up to there has its verdict.
-- passed: and every such verdict is folded by the consumer (of a consumer of the whole log: every event, too). Both are looked for within a span of positions;
-- where that does not reach, they are lower than what is true, never higher.
-- +goose StatementBegin
CREATE FUNCTION consumer_standing(
  of_partition smallint, of_tenant uuid, of_projection text, of_generation int, of_consumer text, whole_log boolean, span bigint,
  OUT head bigint, OUT decided bigint, OUT last_validated bigint, OUT folded bigint, OUT passed bigint,
  OUT generation int, OUT moved_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant      uuid := asking(of_tenant);
  last_raw    bigint;
  checked     bigint; -- the validator's checkpoint
  verdict     bigint; -- the tenant's first that is not folded
  verdict_raw bigint;
  cause_id    uuid;
  cause       bigint; -- what it is the verdict on
BEGIN
  SELECT h.position, h.topic_positions[1], h.topic_positions[2], v.position, x.position, x.generation, x.updated_at
    INTO head, last_raw, last_validated, checked, folded, generation, moved_at
    FROM log_heads h
    JOIN consumer_checkpoints v ON v.consumer = 'meterplex-usage-validator' AND v.generation = 1 AND v.partition = h.partition
    JOIN consumer_checkpoints x ON x.consumer = of_consumer AND x.partition = h.partition
     AND x.generation = coalesce(of_generation, (
           SELECT p.generation FROM projection_pointers p
            WHERE p.live AND p.projection = of_projection AND p.period_key = ''
              AND p.tenant_id IN (tenant, '00000000-0000-0000-0000-000000000000')
            ORDER BY p.tenant_id DESC LIMIT 1)) -- nil, the default, sorts first
   WHERE h.partition = of_partition;

  decided := head;
  IF checked < last_raw THEN
    SELECT l.position - 1 INTO decided FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > checked AND l.position <= least(last_raw, checked + span)
       AND l.topic = 1 AND l.tenant_id IS NOT DISTINCT FROM tenant
     ORDER BY l.position LIMIT 1;
    IF NOT FOUND THEN
      decided := CASE WHEN checked + span < last_raw THEN checked + span ELSE head END;
    END IF;
  END IF;

  passed := CASE WHEN whole_log THEN least(decided, folded) ELSE decided END;
  IF folded >= last_validated THEN
    RETURN;
  END IF;

  SELECT l.position, (l.payload ->> 'rawPosition')::bigint, l.causation_id INTO verdict, verdict_raw, cause_id FROM event_log_rows l
   WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last_validated, folded + span)
     AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 2
   ORDER BY l.position LIMIT 1;
  IF FOUND THEN
    -- A first verdict's cause is the recorded event, a later one's is the retry.
    SELECT l.position INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position = verdict_raw AND l.event_id = cause_id;
    IF NOT FOUND THEN
      SELECT l.position INTO cause FROM event_log_rows l
       WHERE l.partition = of_partition AND l.position < verdict AND l.position >= verdict - span AND l.event_id = cause_id
       ORDER BY l.position DESC LIMIT 1;
    END IF;
    passed := least(passed, coalesce(cause, verdict_raw) - 1);
  ELSIF folded + span < last_validated THEN
    -- Verdicts are in the order of what they are on, so that what the last folded
    -- one is on has passed, whoever's it is.
    SELECT (l.payload ->> 'rawPosition')::bigint INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position <= folded AND l.position > folded - span AND l.subject = 2
     ORDER BY l.position DESC LIMIT 1;
    passed := least(passed, coalesce(cause, 0));
  END IF;

  IF NOT whole_log THEN -- a verdict that is to be folded again is the tenant's event, too
    SELECT l.position INTO cause FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last_validated, folded + span, verdict)
       AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject = 12
     ORDER BY l.position LIMIT 1;
    IF FOUND THEN
      passed := least(passed, cause - 1);
    END IF;
  END IF;
END $$;
-- +goose StatementEnd

-- A rebuild, with where it stands. Each of its steps is an event in the log, too.
CREATE TABLE projection_rebuilds (
  id           uuid PRIMARY KEY,            -- the id of the event that asked for it
  projection   text NOT NULL,
  consumer     text NOT NULL,               -- that feeds it
  generation   int  NOT NULL,
  fold_version text NOT NULL,
  purpose      text NOT NULL CHECK (purpose IN ('rebuild', 'verify')),
  repair       boolean NOT NULL DEFAULT false, -- of a verify: promote where it differs
  tenant_id    uuid NOT NULL,               -- nil: all
  period_key   text COLLATE "C" NOT NULL,   -- '': all
  reason       text NOT NULL,
  state        text NOT NULL CHECK (state IN ('FOLDING', 'CATCHING_UP', 'READY', 'PROMOTED', 'ROLLED_BACK', 'ABANDONED', 'FAILED')),
  failure      text NOT NULL DEFAULT '',
  workers      int  NOT NULL,
  flip         int,                         -- of its last promotion
  differs      bigint,                      -- of a verify: keys that were not as the log says
  report       json,                        -- of a verify: the first of those keys, with what they said
  created_at   timestamptz NOT NULL,
  ready_at     timestamptz,
  ended_at     timestamptz,                 -- promoted, rolled back, abandoned or failed
  UNIQUE (projection, generation)
);
CREATE INDEX projection_rebuilds_open ON projection_rebuilds (state) WHERE state IN ('FOLDING', 'CATCHING_UP');

-- A unit of a rebuild's work is a log partition; how far it is says the checkpoint of its generation, whose lock is the unit's lease.
CREATE TABLE rebuild_units (
  rebuild_id uuid     NOT NULL REFERENCES projection_rebuilds,
  partition  smallint NOT NULL,
  target     bigint   NOT NULL,            -- where the live one stood when it began
  events     bigint   NOT NULL DEFAULT 0,  -- folded
  worker     text     NOT NULL DEFAULT '',
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (rebuild_id, partition)
) WITH (fillfactor = 50);

-- Deletes the units of at most so many rebuilds that ended before an interval, and returns the number of rebuilds. A rebuild whose generation is fed can be
-- compared, promoted or rolled back, and needs them.
-- +goose StatementBegin
CREATE FUNCTION expire_rebuild_units(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired uuid[];
BEGIN
  SELECT coalesce(array_agg(old.id), '{}') INTO expired FROM (
    SELECT r.id FROM projection_rebuilds r JOIN projection_generations g USING (projection, generation)
     WHERE r.state IN ('PROMOTED', 'ROLLED_BACK', 'ABANDONED', 'FAILED') AND r.ended_at < now() - greatest(older, interval '1 day')
       AND g.dropped_at IS NOT NULL AND EXISTS (SELECT FROM rebuild_units u WHERE u.rebuild_id = r.id)
     ORDER BY r.id LIMIT batch_size(most)) old;
  DELETE FROM rebuild_units u WHERE u.rebuild_id = ANY (expired);
  RETURN cardinality(expired);
END $$;
-- +goose StatementEnd

-- usage_aggregates: the figures.
CREATE TABLE usage_aggregates (
  generation      int      NOT NULL,
  partition       smallint NOT NULL,
  tenant_id       uuid     NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  subscription_id uuid     NOT NULL,
  amount          numeric  NOT NULL, -- a bigint sum can overflow
  event_count     bigint   NOT NULL,
  applied_count   bigint   NOT NULL, -- verdicts folded, a term of the identity
  period_start    timestamptz,       -- NULL for lifetime
  period_end      timestamptz,
  last_event_at   timestamptz NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, period_key, subscription_id)
) WITH (fillfactor = 50);
-- The figures of all tenants in a period, in the order of their pages: a page reads its own rows, of all features or of one. No indexed column changes while a
-- figure grows, so that its updates stay in its page (HOT).
CREATE INDEX usage_aggregates_period ON usage_aggregates (generation, period_key, tenant_id, feature, subscription_id);
CREATE INDEX usage_aggregates_feature ON usage_aggregates (generation, period_key, feature, tenant_id, subscription_id);

-- The running totals of a figure: what its rows in usage_aggregates were once every verdict up to a position was folded. The fold adds those of all
-- subscriptions of the figure, at the same position, after each 1,024 or more verdicts, so that a figure as of a position is the last totals before it and a
-- few thousand verdicts.
CREATE TABLE usage_running_totals (
  generation      int    NOT NULL,
  partition       smallint NOT NULL,
  tenant_id       uuid   NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  period_key      text COLLATE "C" NOT NULL,
  position        bigint NOT NULL,
  subscription_id uuid   NOT NULL,
  amount          numeric NOT NULL, -- a bigint sum can overflow
  event_count     bigint NOT NULL,
  last_event_at   timestamptz NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, period_key, position, subscription_id)
);

-- The sums of a figure by grant. The aggregator adds to them in the transaction of usage_aggregates, of the same generation, for the verdicts that name a
-- grant: if applied_count sums up to that of the figure, the rows are the whole figure.
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

-- usage_series: the usage of each hour (UTC) and group. Days and months are sums of hours.
CREATE TABLE usage_series (
  generation   int         NOT NULL,
  partition    smallint    NOT NULL,
  tenant_id    uuid        NOT NULL,
  feature      text COLLATE "C" NOT NULL,
  hour         timestamptz NOT NULL, -- its start
  group_values text COLLATE "C" NOT NULL, -- a JSON object by key, in the order of the keys; {}: not grouped
  amount       numeric     NOT NULL, -- a bigint sum can overflow
  event_count  bigint      NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, hour, group_values)
) WITH (fillfactor = 50);
-- The hours of a group, for pages of months of grouped features. Usage that is not grouped does not pay for it. It has no generation: a query that compares the
-- generation by IS NOT DISTINCT FROM can use this index and not the primary key, which the server would prefer for a generation that its statistics do not know.
CREATE INDEX usage_series_groups ON usage_series (tenant_id, feature, group_values, hour) WHERE group_values <> '{}';

-- The values of a key that have groups of their own, at most 1,000 for each tenant and feature.
CREATE TABLE usage_series_values (
  generation int  NOT NULL,
  tenant_id  uuid NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature, key, value)
);

-- entitlement_reads: the grants of tenants and what is used of them.
CREATE TABLE entitlement_grants (
  generation      int    NOT NULL,
  tenant_id       uuid   NOT NULL,
  feature         text COLLATE "C" NOT NULL,
  subscription_id uuid   NOT NULL,
  type            text   NOT NULL,
  unit            text   NOT NULL,
  "limit"         bigint,            -- NULL: no limit
  limit_behavior  text   NOT NULL,
  reset_period    text   NOT NULL,
  on_ingest       text   NOT NULL,
  PRIMARY KEY (generation, tenant_id, feature)
);
CREATE TABLE entitlement_usage (
  generation int     NOT NULL,
  tenant_id  uuid    NOT NULL,
  feature    text COLLATE "C" NOT NULL,
  period_key text COLLATE "C" NOT NULL,
  used       numeric NOT NULL,
  held       numeric NOT NULL DEFAULT 0,
  PRIMARY KEY (generation, tenant_id, feature, period_key)
) WITH (fillfactor = 50);

-- Dead letters of one cause have one fingerprint: what a reason quotes, counts or names by an id is left out of it. It follows from the row alone, so that it
-- is the same in every generation and no fold knows it. sha256 of text is immutable in a database of one encoding, which the server does not know.
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

CREATE TABLE dead_letter_events (
  generation        int      NOT NULL,
  id                uuid     NOT NULL, -- the id of the event that says it failed first
  partition         smallint NOT NULL,
  tenant_id         uuid     NOT NULL,
  stage             text     NOT NULL,
  status            text     NOT NULL,
  code              text     NOT NULL,
  reason            text     NOT NULL,
  details           json,
  producer_event_id text     NOT NULL,
  feature           text     NOT NULL,
  source_position   bigint   NOT NULL,
  topic             text     NOT NULL,
  kafka_partition   smallint,
  kafka_offset      bigint,
  payload           json,
  retry_count       int      NOT NULL,
  first_failed_at   timestamptz NOT NULL,
  last_failed_at    timestamptz NOT NULL,
  fingerprint       text COLLATE "C" NOT NULL GENERATED ALWAYS AS (dead_letter_fingerprint(stage, code, details ->> 'consumer', feature, reason)) STORED,
  PRIMARY KEY (generation, id)
);
CREATE INDEX dead_letter_events_by_tenant ON dead_letter_events (generation, tenant_id, id);
CREATE INDEX dead_letter_events_by_event ON dead_letter_events (generation, tenant_id, producer_event_id);
CREATE INDEX dead_letter_events_parked ON dead_letter_events (generation, tenant_id) WHERE stage NOT IN ('INGESTION', 'VALIDATION');
CREATE INDEX dead_letter_events_by_fingerprint ON dead_letter_events (generation, fingerprint, id);
-- What somebody has to look at: few, however many there ever were.
CREATE INDEX dead_letter_events_open ON dead_letter_events (generation, status, stage, id) WHERE status IN ('FAILED', 'RETRYING');
-- The newest, the first and the last dead letter of a cause, by status. No other index has one of these orders, so that each look-up has one way: two have ids
-- in order.
CREATE INDEX dead_letter_events_newest ON dead_letter_events (generation, fingerprint, status, uuid_send(id));
CREATE INDEX dead_letter_events_first ON dead_letter_events (generation, fingerprint, status, first_failed_at);
CREATE INDEX dead_letter_events_last ON dead_letter_events (generation, fingerprint, status, last_failed_at);

-- How many dead letters each tenant has of each cause. A dead letter is in two rows: that of its slot, which is the five minutes in which it failed first,
-- counted from 1970, and that of all slots, -1. A row may have no dead letter left.
CREATE TABLE dead_letter_counts (
  generation  int      NOT NULL,
  slot        bigint   NOT NULL,
  tenant_id   uuid     NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  topic       text     NOT NULL,
  partition   smallint NOT NULL,
  failed      bigint   NOT NULL,
  retrying    bigint   NOT NULL,
  resolved    bigint   NOT NULL,
  discarded   bigint   NOT NULL,
  PRIMARY KEY (generation, slot, tenant_id, fingerprint, topic)
) WITH (fillfactor = 70);
-- +goose StatementBegin
CREATE FUNCTION dead_letter_slot(failed_at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT floor(extract(epoch FROM failed_at) / 300)::bigint $$;
-- +goose StatementEnd

-- Counts the rows of a statement. The rows of one tenant are written by one transaction at a time.
-- +goose StatementBegin
CREATE FUNCTION count_dead_letters() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO dead_letter_counts AS c
    SELECT n.generation, s.slot, n.tenant_id, n.fingerprint, n.topic, min(n.partition), count(*) FILTER (WHERE n.status = 'FAILED'),
           count(*) FILTER (WHERE n.status = 'RETRYING'), count(*) FILTER (WHERE n.status = 'RESOLVED'), count(*) FILTER (WHERE n.status = 'DISCARDED')
    FROM written n CROSS JOIN LATERAL (VALUES (-1), (dead_letter_slot(n.first_failed_at))) s (slot)
    GROUP BY n.generation, s.slot, n.tenant_id, n.fingerprint, n.topic
    ON CONFLICT (generation, slot, tenant_id, fingerprint, topic) DO UPDATE SET failed = c.failed + excluded.failed,
      retrying = c.retrying + excluded.retrying, resolved = c.resolved + excluded.resolved, discarded = c.discarded + excluded.discarded;
  ELSIF TG_OP = 'UPDATE' THEN
    IF NOT EXISTS (SELECT FROM replaced) THEN -- an INSERT with ON CONFLICT that met no row
      RETURN NULL;
    END IF;
    INSERT INTO dead_letter_counts AS c
    SELECT n.generation, s.slot, n.tenant_id, n.fingerprint, n.topic, min(n.partition), coalesce(sum(n.by) FILTER (WHERE n.status = 'FAILED'), 0),
           coalesce(sum(n.by) FILTER (WHERE n.status = 'RETRYING'), 0), coalesce(sum(n.by) FILTER (WHERE n.status = 'RESOLVED'), 0),
           coalesce(sum(n.by) FILTER (WHERE n.status = 'DISCARDED'), 0)
    FROM (SELECT 1 AS by, w.* FROM written w UNION ALL SELECT -1, r.* FROM replaced r) n
    CROSS JOIN LATERAL (VALUES (-1), (dead_letter_slot(n.first_failed_at))) s (slot)
    GROUP BY n.generation, s.slot, n.tenant_id, n.fingerprint, n.topic
    ON CONFLICT (generation, slot, tenant_id, fingerprint, topic) DO UPDATE SET failed = c.failed + excluded.failed,
      retrying = c.retrying + excluded.retrying, resolved = c.resolved + excluded.resolved, discarded = c.discarded + excluded.discarded
    WHERE (excluded.failed, excluded.retrying, excluded.resolved, excluded.discarded) <> (0, 0, 0, 0);
  ELSIF TG_OP = 'DELETE' THEN
    UPDATE dead_letter_counts c SET failed = c.failed - n.failed, retrying = c.retrying - n.retrying, resolved = c.resolved - n.resolved, discarded = c.discarded - n.discarded
    FROM (SELECT r.generation, s.slot, r.tenant_id, r.fingerprint, r.topic, count(*) FILTER (WHERE r.status = 'FAILED') AS failed,
            count(*) FILTER (WHERE r.status = 'RETRYING') AS retrying, count(*) FILTER (WHERE r.status = 'RESOLVED') AS resolved, count(*) FILTER (WHERE r.status = 'DISCARDED') AS discarded
          FROM replaced r CROSS JOIN LATERAL (VALUES (-1), (dead_letter_slot(r.first_failed_at))) s (slot)
          GROUP BY r.generation, s.slot, r.tenant_id, r.fingerprint, r.topic) n
    WHERE (c.generation, c.slot, c.tenant_id, c.fingerprint, c.topic) = (n.generation, n.slot, n.tenant_id, n.fingerprint, n.topic);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER count_inserted AFTER INSERT ON dead_letter_events REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION count_dead_letters();
CREATE TRIGGER count_updated AFTER UPDATE ON dead_letter_events REFERENCING OLD TABLE AS replaced NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION count_dead_letters();
CREATE TRIGGER count_deleted AFTER DELETE ON dead_letter_events REFERENCING OLD TABLE AS replaced FOR EACH STATEMENT EXECUTE FUNCTION count_dead_letters();

-- What of a tenant failed in a fold or on its way out and is no dead letter yet: the positions of what failed, as far as a span from the dead letters'
-- checkpoint. Failures of read models beside the way to the aggregates do not count.
-- +goose StatementBegin
CREATE FUNCTION failing_positions(of_partition smallint, of_tenant uuid, folded bigint, span bigint)
RETURNS bigint[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  tenant  uuid := asking(of_tenant);
  last    bigint;
  failing bigint[] := '{}';
BEGIN
  SELECT h.topic_positions[3] INTO last FROM log_heads h WHERE h.partition = of_partition;
  IF folded < last THEN
    SELECT coalesce(array_agg((l.payload ->> 'sourcePosition')::bigint), '{}') INTO failing FROM event_log_rows l
     WHERE l.partition = of_partition AND l.position > folded AND l.position <= least(last, folded + span)
       AND l.tenant_id IS NOT DISTINCT FROM tenant AND l.subject IN (10, 11)
       AND (l.subject = 10 OR EXISTS (
             SELECT FROM log_origins o
              WHERE o.id = l.origin AND o.actor_id IN ('meterplex-usage-validator', 'meterplex-usage-aggregator')));
  END IF;
  RETURN failing;
END $$;
-- +goose StatementEnd

-- Usage that ingest refused, by tenant, code and feature: at most 1,000 groups of a tenant, and one of other features for each code.
CREATE TABLE usage_refusals (
  generation int         NOT NULL,
  partition  smallint    NOT NULL,
  tenant_id  uuid        NOT NULL,
  code       text COLLATE "C" NOT NULL,
  feature    text COLLATE "C" NOT NULL, -- '': the events had no valid one; *: other features
  count      bigint      NOT NULL,
  first_at   timestamptz NOT NULL,
  last_at    timestamptz NOT NULL,
  samples    json        NOT NULL,      -- the last ones, at most ten
  PRIMARY KEY (generation, tenant_id, code, feature)
) WITH (fillfactor = 50);
