-- +goose Up
-- Endpoints of tenants, their secrets, and the events that are sent to them. Only workers read them: a secret signs requests, so that it is stored as it is.
-- Times are of the database's clock.
CREATE TABLE webhooks (
  id              uuid PRIMARY KEY,
  tenant_id       uuid NOT NULL,
  partition       smallint NOT NULL CHECK (partition BETWEEN 0 AND 31),
  url             text NOT NULL CHECK (length(url) <= 2048),
  events          text[] NOT NULL,
  status          text COLLATE "C" NOT NULL CHECK (status IN ('ENABLED', 'DISABLED', 'REMOVED')),
  reason          text NOT NULL DEFAULT '',
  cursor          bigint NOT NULL,             -- number of the last event that was considered; at first that of the event that created it
  replay_after    bigint NOT NULL DEFAULT 0,   -- the range of numbers that is delivered again
  replay_until    bigint NOT NULL DEFAULT 0,
  created_at      timestamptz NOT NULL,
  failing_since   timestamptz,                 -- the first failure after the last success
  last_success_at timestamptz,
  lease           uuid,                        -- of the instance that sends its deliveries; a new one each time
  next_at         timestamptz,                 -- of the next attempt; under a lease: its end; NULL: no delivery waits
  operators       boolean NOT NULL DEFAULT false -- an operator set the URL: it may reach the networks of METERPLEX_WEBHOOK_ALLOW
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX webhooks_of_tenant ON webhooks (tenant_id, id) WHERE status <> 'REMOVED';
CREATE INDEX webhooks_enabled ON webhooks (partition) WHERE status = 'ENABLED';
CREATE INDEX webhooks_due ON webhooks (next_at) WHERE status = 'ENABLED' AND next_at IS NOT NULL;

CREATE TABLE webhook_secrets (
  id         uuid PRIMARY KEY,
  webhook_id uuid NOT NULL REFERENCES webhooks,
  tenant_id  uuid NOT NULL,
  secret     text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz                       -- NULL: the newest
);
CREATE INDEX webhook_secrets_of ON webhook_secrets (webhook_id, id);

CREATE TABLE webhook_deliveries (
  id         uuid PRIMARY KEY,
  webhook_id uuid NOT NULL REFERENCES webhooks,
  tenant_id  uuid NOT NULL,
  event_id   uuid NOT NULL,                    -- the webhook-id of each attempt
  type       text COLLATE "C" NOT NULL,
  position   bigint,                           -- number of the event; NULL: webhook.test
  state      text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'DELIVERED', 'FAILED')),
  attempts   int NOT NULL DEFAULT 0,           -- since it was created or replayed
  sent       int NOT NULL DEFAULT 0,           -- all attempts
  next_at    timestamptz,
  created_at timestamptz NOT NULL,
  ended_at   timestamptz,
  UNIQUE (webhook_id, event_id),
  CHECK ((state = 'PENDING') = (ended_at IS NULL)),
  CHECK ((state = 'PENDING') = (next_at IS NOT NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX webhook_deliveries_of ON webhook_deliveries (webhook_id, id);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_at) WHERE state = 'PENDING';
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE state <> 'PENDING';

CREATE TABLE webhook_attempts (
  delivery_id uuid NOT NULL REFERENCES webhook_deliveries ON DELETE CASCADE,
  tenant_id   uuid NOT NULL,
  n           int NOT NULL,                    -- counts all attempts of the delivery; the last 20 are kept
  at          timestamptz NOT NULL,
  status      int NOT NULL,                    -- of HTTP; 0: no answer
  duration_ms bigint NOT NULL,
  error       text NOT NULL,                   -- '': success
  PRIMARY KEY (delivery_id, n)
);
