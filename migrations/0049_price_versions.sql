-- +goose Up
-- Stop all instances first. Grants name versions of prices, so that no charge of the past depends on the present catalogue.
INSERT INTO required_migrations VALUES (49, 'they would change a price without a new version, so that charges of the past change');

-- The present prices are version 1.
ALTER TABLE prices ADD COLUMN version bigint NOT NULL DEFAULT 1 CHECK (version > 0);
ALTER TABLE prices ALTER COLUMN version DROP DEFAULT;

-- All versions of all prices: insert only.
CREATE TABLE price_versions (
  key          text COLLATE "C" NOT NULL,
  version      bigint NOT NULL CHECK (version > 0),
  name         text NOT NULL,
  currency     text COLLATE "C" NOT NULL,
  model        text COLLATE "C" NOT NULL CHECK (model IN ('flat', 'per_unit', 'package', 'graduated', 'volume')),
  micro_units  bigint CHECK (micro_units >= 0),
  package_size bigint NOT NULL CHECK (package_size >= 0),
  tiers        json NOT NULL,
  PRIMARY KEY (key, version)
);
INSERT INTO price_versions (key, version, name, currency, model, micro_units, package_size, tiers)
SELECT key, version, name, currency, model, micro_units, package_size, tiers FROM prices;
GRANT SELECT, INSERT ON price_versions TO meterplex_worker;

-- Subscriptions of earlier releases started when they were created.
ALTER TABLE subscriptions ADD COLUMN starts_at timestamptz;
ALTER TABLE subscriptions NO FORCE ROW LEVEL SECURITY;
UPDATE subscriptions SET starts_at = created_at;
ALTER TABLE subscriptions FORCE ROW LEVEL SECURITY;
ALTER TABLE subscriptions ALTER COLUMN starts_at SET NOT NULL, ALTER COLUMN starts_at SET DEFAULT now();
