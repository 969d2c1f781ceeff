-- +goose Up
-- Stop all instances before it: an older one would make test tenants live ones.
INSERT INTO required_migrations VALUES (54, 'they would close periods of test tenants, push them, and make keys of another mode than that of their tenant');

-- The mode of a tenant, fixed at its creation. All tenants of before are live.
ALTER TABLE tenants ADD COLUMN mode text COLLATE "C" NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test'));
