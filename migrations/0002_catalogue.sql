-- +goose Up
-- The write model of the catalogue, changed in the transaction that appends the
-- event of the change.
CREATE TABLE tenants (
  id         uuid PRIMARY KEY,
  name       text NOT NULL,
  class      text NOT NULL CHECK (class IN ('small', 'medium', 'large')),
  status     text NOT NULL CHECK (status IN ('ACTIVE', 'SUSPENDED')),
  created_at timestamptz NOT NULL
);

-- Of a secret only its SHA-256 is kept: 256 random bits need no slow hash.
CREATE TABLE api_keys (
  id          uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL,             -- nil: an operator key
  name        text NOT NULL,
  prefix      text NOT NULL,
  mode        text NOT NULL CHECK (mode IN ('live', 'test', 'op')),
  scopes      text[] NOT NULL,
  secret_hash bytea NOT NULL UNIQUE,
  created_at  timestamptz NOT NULL,
  expires_at  timestamptz,
  revoked_at  timestamptz
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

CREATE TABLE features (
  lookup_key text COLLATE "C" PRIMARY KEY,
  name       text NOT NULL,
  type       text NOT NULL CHECK (type IN ('BOOLEAN', 'QUOTA', 'METERED')),
  unit       text NOT NULL
);

CREATE TABLE plans (
  key          text COLLATE "C" PRIMARY KEY,
  name         text NOT NULL,
  entitlements json NOT NULL
);

CREATE TABLE subscriptions (
  id           uuid PRIMARY KEY,
  tenant_id    uuid NOT NULL,
  plan         text NOT NULL,
  status       text NOT NULL CHECK (status IN ('ACTIVE', 'TRIALING', 'PAST_DUE', 'CANCELLED', 'EXPIRED')),
  entitlements json NOT NULL,
  created_at   timestamptz NOT NULL
);
CREATE INDEX subscriptions_by_tenant ON subscriptions (tenant_id, id);
CREATE UNIQUE INDEX subscriptions_one_active ON subscriptions (tenant_id) WHERE status IN ('ACTIVE', 'TRIALING');

-- What verdicts are taken from: insert-only, a row for each change of what is in force.
CREATE TABLE subscription_history (
  tenant_id      uuid NOT NULL,
  from_position  bigint NOT NULL,
  effective_from timestamptz NOT NULL,
  snapshot       json,                   -- the subscription, NULL where none is in force
  PRIMARY KEY (tenant_id, from_position)
);

-- First answers to requests that came with an Idempotency-Key. Never a secret.
CREATE TABLE idempotency_answers (
  tenant_id    uuid NOT NULL,
  key          text COLLATE "C" NOT NULL,
  request_hash bytea NOT NULL,
  status       smallint NOT NULL,
  body         json NOT NULL,
  created_at   timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);

-- +goose StatementBegin
DO $$
DECLARE t text; col text;
BEGIN
  FOREACH t IN ARRAY ARRAY['tenants', 'api_keys', 'subscriptions', 'subscription_history', 'idempotency_answers'] LOOP
    col := CASE t WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END;
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant USING (%I = NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid)', t, col);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
  END LOOP;
END $$;
-- +goose StatementEnd
GRANT SELECT, INSERT, UPDATE ON tenants, api_keys, features, plans, subscriptions TO meterplex_worker;
GRANT SELECT, INSERT ON subscription_history, idempotency_answers TO meterplex_worker;
GRANT SELECT ON tenants, subscriptions, subscription_history, features, plans TO meterplex_tenant;
