-- +goose Up
-- Older instances go on beside it: it only adds views, policies for them and a role.

-- Reporting tools read as this role, or as its members. Without the right to create roles, a DBA creates it: docs/reporting.md.
-- +goose StatementBegin
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex_reporting') THEN
    CREATE ROLE meterplex_reporting NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT;
  END IF;
EXCEPTION
  WHEN duplicate_object OR unique_violation THEN NULL; -- another database of this cluster was faster
  WHEN insufficient_privilege THEN RAISE NOTICE 'the role meterplex_reporting is missing: reporting tools need it';
END $$;
-- +goose StatementEnd

-- Billed usage as readers of the API see it: the rows of the live generation of each tenant's period.
CREATE VIEW reporting_usage AS
SELECT u.tenant_id, t.name AS tenant, t.class AS tenant_class, u.feature, f.name AS feature_name, f.unit, u.period_key AS period, u.period_start, u.period_end,
       u.subscription_id, s.plan, u.amount, u.event_count, u.last_event_at
FROM usage_aggregates u
LEFT JOIN tenants t ON t.id = u.tenant_id
LEFT JOIN features f ON f.lookup_key = u.feature
LEFT JOIN subscriptions s ON s.id = u.subscription_id
WHERE u.generation = (SELECT p.generation FROM projection_pointers p
                       WHERE p.projection = 'usage_aggregates' AND p.tenant_id IN (u.tenant_id, '00000000-0000-0000-0000-000000000000')
                         AND p.period_key IN (u.period_key, '') AND p.undone_flip IS NULL
                       ORDER BY p.flip DESC LIMIT 1);

-- Frozen figures of the periods that are closed now.
CREATE VIEW reporting_closed_usage AS
SELECT l.tenant_id, t.name AS tenant, l.feature, f.name AS feature_name, f.unit, l.period_key AS period, l.snapshot, c.changed_at AS closed_at,
       l.subscription_id, s.plan, l.amount, l.event_count
FROM period_lines l
JOIN LATERAL (SELECT p.change, p.snapshot, p.changed_at FROM period_changes p
               WHERE p.tenant_id = l.tenant_id AND p.period_key = l.period_key ORDER BY p.position DESC LIMIT 1) c ON c.change = 'closed' AND c.snapshot = l.snapshot
LEFT JOIN tenants t ON t.id = l.tenant_id
LEFT JOIN features f ON f.lookup_key = l.feature
LEFT JOIN subscriptions s ON s.id = l.subscription_id;

-- Differences of closed periods, each snapshot's.
CREATE VIEW reporting_adjustments AS
SELECT a.id, a.tenant_id, t.name AS tenant, a.feature, f.name AS feature_name, f.unit, a.period_key AS period, a.snapshot, a.kind, a.state, a.amount, a.event_count,
       a.subscription_id, a.source_event_id, a.reason
FROM adjustments a
LEFT JOIN tenants t ON t.id = a.tenant_id
LEFT JOIN features f ON f.lookup_key = a.feature;

-- Failed events, of the live generation.
CREATE VIEW reporting_dead_letters AS
SELECT d.id, d.tenant_id, t.name AS tenant, d.stage, d.status, d.code, d.reason, d.feature, d.producer_event_id AS event_id, d.retry_count, d.first_failed_at, d.last_failed_at
FROM dead_letter_events d
LEFT JOIN tenants t ON t.id = d.tenant_id
WHERE d.generation = (SELECT p.generation FROM projection_pointers p
                       WHERE p.projection = 'dead_letter_events' AND p.tenant_id IN (d.tenant_id, '00000000-0000-0000-0000-000000000000')
                         AND p.period_key = '' AND p.undone_flip IS NULL
                       ORDER BY p.flip DESC LIMIT 1);

-- A view reads its tables with the rights of its owner, on whom row level security is forced, too. These policies let it read for others;
-- the owner itself still sees no row of tenants.
-- +goose StatementBegin
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['usage_aggregates', 'dead_letter_events', 'tenants', 'subscriptions', 'projection_pointers', 'period_lines', 'period_changes', 'adjustments'] LOOP
    EXECUTE format('CREATE POLICY reporting ON %I FOR SELECT TO CURRENT_USER USING (current_user <> %L)', t, current_user);
  END LOOP;
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'meterplex_reporting') THEN
    GRANT SELECT ON reporting_usage, reporting_closed_usage, reporting_adjustments, reporting_dead_letters TO meterplex_reporting;
  END IF;
END $$;
-- +goose StatementEnd
