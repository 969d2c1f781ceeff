-- +goose Up
-- The rows of the catalogue: folds of its events, by the transaction that appends them.

CREATE TABLE tenants (
  id                uuid PRIMARY KEY,
  name              text NOT NULL,
  class             text NOT NULL CHECK (class IN ('small', 'medium', 'large')),
  status            text NOT NULL CHECK (status IN ('ACTIVE', 'SUSPENDED', 'ARCHIVED')),
  created_at        timestamptz NOT NULL,
  data_residency    text COLLATE "C" NOT NULL DEFAULT 'unspecified' CHECK (data_residency ~ '^[a-z][a-z0-9-]{0,31}$'),
  external_ids      text[] COLLATE "C" NOT NULL DEFAULT '{}', -- ids in other systems
  metadata          jsonb NOT NULL DEFAULT '{}',
  late_usage        text COLLATE "C" NOT NULL DEFAULT 'REJECT' CHECK (late_usage IN ('REJECT', 'ADJUST')),
  close_after_hours int CHECK (close_after_hours BETWEEN 1 AND 8784), -- NULL: periods are closed by request only
  billing_provider  text COLLATE "C",                     -- the tenant's customer at a billing provider
  billing_customer  text COLLATE "C",
  mode              text COLLATE "C" NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test')), -- fixed at its creation
  erased_at         timestamptz,                          -- NULL: the personal data is there
  CONSTRAINT tenants_billing CHECK ((billing_provider IS NULL) = (billing_customer IS NULL))
);
-- The tenants whose periods are closed by a policy, in the order of the look for periods that are due.
CREATE INDEX tenants_close_after ON tenants (id) WHERE close_after_hours IS NOT NULL;

-- The ids of tenants.external_ids, each once over all tenants. Changes lock the table after all heads.
CREATE TABLE tenant_external_ids (
  external_id text COLLATE "C" PRIMARY KEY,
  tenant_id   uuid NOT NULL,
  UNIQUE (tenant_id, external_id)
);

-- The policies of tenants that verdicts are decided by: insert only. The present one stands in tenants, too.
CREATE TABLE tenant_policies (
  tenant_id         uuid NOT NULL,
  from_position     bigint NOT NULL,      -- number of the event that changed it
  late_usage        text COLLATE "C" NOT NULL CHECK (late_usage IN ('REJECT', 'ADJUST')),
  close_after_hours int,
  PRIMARY KEY (tenant_id, from_position)
);

CREATE TABLE features (
  lookup_key    text COLLATE "C" PRIMARY KEY,
  name          text NOT NULL,
  type          text NOT NULL CHECK (type IN ('BOOLEAN', 'QUOTA', 'METERED')),
  unit          text NOT NULL,
  group_by      text[] NOT NULL DEFAULT '{}',
  billing_event text COLLATE "C" NOT NULL DEFAULT '' -- name of the provider's meter; '': the lookup key
);

-- The metadata keys by which the usage of a feature is grouped, and since when: the keys of a usage event are those of the latest row up to the time at
-- which it was recorded.
CREATE TABLE feature_groupings (
  feature text COLLATE "C" NOT NULL,
  since   timestamptz NOT NULL,
  keys    text[] NOT NULL,
  PRIMARY KEY (feature, since)
);

CREATE TABLE plans (
  key          text COLLATE "C" PRIMARY KEY,
  name         text NOT NULL,
  entitlements json NOT NULL
);

-- All versions of all prices: insert only. The last one is the present price. Grants name versions, so that no charge of the past depends on the present
-- catalogue. Money is in micro-units, millionths of the currency's unit.
CREATE TABLE prices (
  key          text COLLATE "C" NOT NULL,
  version      bigint NOT NULL CHECK (version > 0),
  name         text NOT NULL,
  currency     text COLLATE "C" NOT NULL,
  model        text COLLATE "C" NOT NULL CHECK (model IN ('flat', 'per_unit', 'package', 'graduated', 'volume')),
  micro_units  bigint CHECK (micro_units >= 0),           -- NULL: tiers hold it
  package_size bigint NOT NULL CHECK (package_size >= 0), -- 0: no packages
  tiers        json NOT NULL,                             -- [{upTo, microUnits, flatMicroUnits}], [] for models without tiers
  PRIMARY KEY (key, version)
);

CREATE TABLE subscriptions (
  id           uuid PRIMARY KEY,
  tenant_id    uuid NOT NULL,
  plan         text NOT NULL,
  status       text NOT NULL CHECK (status IN ('ACTIVE', 'TRIALING', 'PAST_DUE', 'CANCELLED', 'EXPIRED')),
  entitlements json NOT NULL,
  created_at   timestamptz NOT NULL,
  starts_at    timestamptz NOT NULL
);
CREATE INDEX subscriptions_by_tenant ON subscriptions (tenant_id, id);
CREATE UNIQUE INDEX subscriptions_one_active ON subscriptions (tenant_id) WHERE status IN ('ACTIVE', 'TRIALING');

-- What verdicts are taken from: insert only, a row for each change of what is in force.
CREATE TABLE subscription_history (
  tenant_id      uuid NOT NULL,
  from_position  bigint NOT NULL,
  effective_from timestamptz NOT NULL,
  snapshot       json,                   -- the subscription, NULL where none is in force
  PRIMARY KEY (tenant_id, from_position)
);

-- Of a secret only its SHA-256 is kept: 256 random bits need no slow hash.
CREATE TABLE api_keys (
  id          uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL,             -- nil: an operator key
  name        text NOT NULL,
  prefix      text NOT NULL,
  mode        text NOT NULL CHECK (mode IN ('live', 'test', 'op')),
  scopes      text[] NOT NULL,
  secret_hash bytea UNIQUE,               -- no event has it
  created_at  timestamptz NOT NULL,
  expires_at  timestamptz,
  revoked_at  timestamptz,
  ended       boolean NOT NULL DEFAULT false -- revoked, or rotated without an overlap: refused at once, whatever the clock of an instance shows
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

-- First answers to requests that came with an Idempotency-Key. Never a secret.
CREATE TABLE idempotency_answers (
  tenant_id    uuid NOT NULL,
  key          text COLLATE "C" NOT NULL,
  request_hash bytea NOT NULL,
  status       smallint NOT NULL,
  body         json,                     -- NULL: no longer kept; the row remains, so that the key never takes effect twice
  created_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_answers_kept ON idempotency_answers (created_at) WHERE body IS NOT NULL;

-- How many rows a function deletes at once.
-- +goose StatementBegin
CREATE FUNCTION batch_size(most int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = public, pg_temp AS $$
BEGIN
  IF most BETWEEN 1 AND 10000 THEN
    RETURN most;
  END IF;
  RAISE EXCEPTION '% rows cannot be deleted at once: delete from 1 to 10000, and call again for the others', coalesce(most::text, 'NULL')
    USING ERRCODE = 'invalid_parameter_value';
END $$;
-- +goose StatementEnd

-- Retention of small tables. The service may not delete or change these rows itself: it calls functions that run as the owner of the tables, and that drop
-- no row which is younger than a day. This one drops the bodies of at most so many answers that are older than an interval, and returns their number.
-- +goose StatementBegin
CREATE FUNCTION expire_answers(older interval, most int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE expired bigint;
BEGIN
  WITH old AS (
    SELECT a.tenant_id, a.key FROM idempotency_answers a
     WHERE a.body IS NOT NULL AND a.created_at < now() - greatest(older, interval '1 day')
     ORDER BY a.created_at LIMIT batch_size(most) FOR UPDATE SKIP LOCKED),
  changed AS (UPDATE idempotency_answers a SET body = NULL FROM old WHERE a.tenant_id = old.tenant_id AND a.key = old.key RETURNING 1)
  SELECT count(*) INTO expired FROM changed;
  RETURN expired;
END $$;
-- +goose StatementEnd

-- Sessions of the console. A row holds the hash of the token in the cookie, never the token. The key of a session is checked at each request.
CREATE TABLE console_sessions (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id     uuid NOT NULL,
  created_at timestamptz NOT NULL,
  used_at    timestamptz NOT NULL
);
CREATE INDEX console_sessions_used ON console_sessions (used_at);

-- Links that sign in once. A row holds the hash of the link's token, and is deleted when the link is used.
CREATE TABLE console_links (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id     uuid NOT NULL,
  expires_at timestamptz NOT NULL
);
