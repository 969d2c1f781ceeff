-- +goose Up
-- Older instances go on beside it: they know no prices, and leave out the price of an entitlement that a plan names.

-- The write model of prices, changed in the transaction that appends the event of the change. Money is in micro-units, millionths of the
-- currency's unit.
CREATE TABLE prices (
  key          text COLLATE "C" PRIMARY KEY,
  name         text NOT NULL,
  currency     text COLLATE "C" NOT NULL,
  model        text COLLATE "C" NOT NULL CHECK (model IN ('flat', 'per_unit', 'package', 'graduated', 'volume')),
  micro_units  bigint CHECK (micro_units >= 0),       -- NULL: tiers hold it
  package_size bigint NOT NULL CHECK (package_size >= 0), -- 0: no packages
  tiers        json NOT NULL                          -- [{upTo, microUnits, flatMicroUnits}], [] for models without tiers
);
GRANT SELECT, INSERT, UPDATE ON prices TO meterplex_worker;
