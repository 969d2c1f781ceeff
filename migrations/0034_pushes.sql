-- +goose Up
-- Stop all instances first. No tenant has a customer at a billing provider before it, so there is nothing to fill.
INSERT INTO required_migrations VALUES (34, 'they would close periods and approve adjustments of tenants with billing without a push');

-- The customer of a tenant at a billing provider, and the name of the provider's meter that counts a feature (NULL: the lookup key).
ALTER TABLE tenants ADD COLUMN billing_provider text COLLATE "C", ADD COLUMN billing_customer text COLLATE "C",
  ADD CONSTRAINT tenants_billing CHECK ((billing_provider IS NULL) = (billing_customer IS NULL));
ALTER TABLE features ADD COLUMN billing_event text COLLATE "C" NOT NULL DEFAULT '';

-- Amounts that a billing provider counts. A row is stored before its first attempt, under the lock of the head of the tenant's partition; amount, key and
-- time never change; customer and event only while the provider surely has not counted it. Times are of the database's clock.
CREATE TABLE pushes (
  id               uuid PRIMARY KEY,
  tenant_id        uuid NOT NULL,
  feature          text COLLATE "C" NOT NULL,
  period_key       text COLLATE "C" NOT NULL,
  snapshot         int NOT NULL CHECK (snapshot > 0),
  n                int NOT NULL CHECK (n >= 0),        -- 0: the first push of the snapshot; k: of its k-th adjustment
  amount           numeric NOT NULL CHECK (amount <> 0 AND amount = trunc(amount)),
  provider         text COLLATE "C" NOT NULL,
  customer         text COLLATE "C" NOT NULL,
  event            text COLLATE "C" NOT NULL,
  key              text COLLATE "C" NOT NULL UNIQUE,
  identifier       text COLLATE "C" NOT NULL UNIQUE,
  counted_at       timestamptz NOT NULL,               -- the timestamp of the provider's event
  state            text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'UNKNOWN', 'DELIVERED', 'FAILED')),
  attempts         int NOT NULL DEFAULT 0,
  failures         int NOT NULL DEFAULT 0,
  stored_at        timestamptz NOT NULL,
  first_attempt_at timestamptz,
  attempted_at     timestamptz,                        -- the last attempt
  unknown_since    timestamptz,                        -- the first attempt that the provider may have counted
  next_at          timestamptz,                        -- NULL: no attempt follows by itself
  delivered_at     timestamptz,
  last_code        text NOT NULL DEFAULT '',
  last_error       text NOT NULL DEFAULT '',
  last_reason      text NOT NULL DEFAULT '',           -- of an operator
  last_actor       text NOT NULL DEFAULT '',
  UNIQUE (tenant_id, period_key, feature, snapshot, n),
  CHECK ((state = 'DELIVERED') = (delivered_at IS NOT NULL)),
  CHECK (state <> 'UNKNOWN' OR unknown_since IS NOT NULL),
  CHECK (state NOT IN ('DELIVERED', 'FAILED') OR next_at IS NULL)
) WITH (fillfactor = 80);
CREATE INDEX pushes_open ON pushes (tenant_id, period_key) WHERE state <> 'DELIVERED';
CREATE INDEX pushes_list ON pushes (tenant_id, id);
CREATE INDEX pushes_windows ON pushes (counted_at);

-- The last comparison of a customer's meter in a month with the provider's total.
CREATE TABLE push_comparisons (
  provider    text COLLATE "C" NOT NULL,
  customer    text COLLATE "C" NOT NULL,
  event       text COLLATE "C" NOT NULL,
  month       text COLLATE "C" NOT NULL,
  total       numeric NOT NULL,                        -- the provider's
  delivered   numeric NOT NULL,
  compared_at timestamptz NOT NULL,
  PRIMARY KEY (provider, customer, event, month)
);

-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['pushes', 'push_comparisons'] LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON %I TO meterplex_worker', t);
  END LOOP;
END $$;
-- +goose StatementEnd
