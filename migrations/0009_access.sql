-- +goose Up
-- Who may do what with tables and functions: row level security, grants, and the views for reporting tools.

-- Row level security is forced, also on the owner of the tables: tenants see their own rows, workers all. The log may only be read and appended to.
ALTER TABLE event_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE event_log FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON event_log FOR SELECT TO meterplex_tenant
  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY worker_reads ON event_log FOR SELECT TO meterplex_worker USING (true);
CREATE POLICY worker_appends ON event_log FOR INSERT TO meterplex_worker WITH CHECK (true);
CREATE POLICY own_tenant ON tenants FOR SELECT TO meterplex_tenant
  USING (id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);
CREATE POLICY own_tenant ON projection_generations FOR SELECT TO meterplex_tenant
  USING (tenant_id IN (NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid, '00000000-0000-0000-0000-000000000000'));
CREATE POLICY own_tenant ON projection_pointers FOR SELECT TO meterplex_tenant
  USING (tenant_id IN (NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid, '00000000-0000-0000-0000-000000000000'));
-- +goose StatementBegin
DO $$
DECLARE
  t       text;
  own     text[] := ARRAY[
    'api_keys', 'subscriptions', 'subscription_history', 'tenant_policies', 'idempotency_answers', 'usage_aggregates', 'usage_running_totals',
    'usage_by_grant', 'usage_series', 'usage_series_values', 'entitlement_grants', 'entitlement_usage', 'dead_letter_events', 'usage_refusals',
    'quota_accounts', 'reservations', 'usage_corrections', 'period_changes', 'period_snapshots', 'period_lines', 'period_charges', 'adjustments'];
  further text[] := ARRAY[
    'tenants', 'projection_generations', 'projection_pointers', 'tenant_external_ids', 'dead_letter_counts', 'thresholds', 'sagas', 'pushes',
    'push_comparisons', 'offboardings', 'erasures', 'webhooks', 'webhook_secrets', 'webhook_deliveries', 'webhook_attempts'];
BEGIN
  FOREACH t IN ARRAY own LOOP
    EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO meterplex_tenant USING (tenant_id = NULLIF(current_setting(''meterplex.tenant_id'', true), '''')::uuid)', t);
  END LOOP;
  FOREACH t IN ARRAY own || further LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY worker ON %I TO meterplex_worker USING (true) WITH CHECK (true)', t);
  END LOOP;

  -- The owner, as whom consumer_standing and the functions of retention and erasures run, need not inherit from meterplex_worker.
  EXECUTE format('CREATE POLICY owner_reads ON projection_pointers FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON projection_generations FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON idempotency_answers FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_expires ON idempotency_answers FOR UPDATE TO %I USING (true) WITH CHECK (body IS NULL)', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON reservations FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_expires ON reservations FOR DELETE TO %I USING (state <> ''HELD'')', current_user);
  EXECUTE format('CREATE POLICY owner_reads ON erasures FOR SELECT TO %I USING (true)', current_user);
  EXECUTE format('CREATE POLICY owner_reads_archived ON tenants FOR SELECT TO %I USING (status = ''ARCHIVED'')', current_user);
END $$;
-- +goose StatementEnd

-- Workers. A table is appended to, changed, or kept clean.
GRANT SELECT ON required_migrations, log_identity, inbox, outbox_events TO meterplex_worker;
GRANT SELECT, UPDATE ON log_heads TO meterplex_worker;
GRANT SELECT, INSERT ON
  event_log, event_log_rows, log_origins, log_vocabularies, log_epochs, subscription_history, tenant_policies, idempotency_answers, prices,
  withheld_records, usage_corrections, period_changes, period_snapshots, period_lines, period_charges TO meterplex_worker;
GRANT SELECT, INSERT, UPDATE ON
  tenants, api_keys, features, feature_groupings, plans, subscriptions, relay_cursors, replays, replay_units, projection_generations,
  projection_rebuilds, rebuild_units, quota_accounts, reservations, thresholds, sagas, adjustments, pushes, push_comparisons, offboardings, erasures,
  webhooks TO meterplex_worker;
GRANT SELECT, INSERT, DELETE ON usage_running_totals, console_links TO meterplex_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON
  tenant_external_ids, console_sessions, instances, relay_instances, outbox_publications, consumer_checkpoints, projection_pointers,
  usage_aggregates, usage_by_grant, usage_series, usage_series_values, entitlement_grants, entitlement_usage, dead_letter_events, dead_letter_counts,
  usage_refusals, webhook_secrets, webhook_deliveries, webhook_attempts TO meterplex_worker;

-- Tenants. The residency of an origin is shown for the tenant's own events only, by recorded_residencies.
GRANT SELECT ON
  event_log, log_heads, log_epochs, log_vocabularies, tenants, subscriptions, subscription_history, tenant_policies, features, feature_groupings,
  plans, relay_cursors, outbox_publications, consumer_checkpoints, projection_generations, projection_pointers, usage_aggregates,
  usage_running_totals, usage_by_grant, usage_series, usage_series_values, entitlement_grants, entitlement_usage, dead_letter_events, usage_refusals,
  quota_accounts, reservations, usage_corrections, period_changes, period_snapshots, period_lines, period_charges, adjustments TO meterplex_tenant;
GRANT SELECT (id, actor_type, actor_id, service, instance, commit, vocabulary, via) ON log_origins TO meterplex_tenant;

REVOKE ALL ON FUNCTION
  asking, is_in_stream, payload(event_log_rows), payload(event_log), payload_hash(event_log_rows), payload_hash(event_log), whole_payload,
  recorded_until, recorded_time, recorded_residencies, log_positions, position_of_event, caused_positions, usage_walk, rejected_positions,
  verdict_positions, failed_verdicts, usage_stream, broker_place, live_generation, consumer_standing, failing_positions, server_life, is_server_life,
  batch_size, expire_answers, expire_replays, expire_rebuild_units, expire_reservations, dead_letter_slot, count_dead_letters,
  erased_copy, erased_body, erase_events, erase_answers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
  payload(event_log_rows), payload(event_log), payload_hash(event_log_rows), payload_hash(event_log), whole_payload, recorded_until, recorded_time,
  recorded_residencies, log_positions, position_of_event, caused_positions, usage_walk, rejected_positions, verdict_positions, failed_verdicts,
  usage_stream, broker_place, live_generation, consumer_standing, failing_positions TO meterplex_worker, meterplex_tenant;
GRANT EXECUTE ON FUNCTION
  server_life, is_server_life, expire_answers, expire_replays, expire_rebuild_units, expire_reservations, dead_letter_slot, count_dead_letters,
  erased_copy, erased_body, erase_events, erase_answers TO meterplex_worker;

-- Billed usage as readers of the API see it: the rows of the live generation of each tenant's period. Test tenants are in no view of figures.
CREATE VIEW reporting_usage AS
SELECT u.tenant_id, t.name AS tenant, t.class AS tenant_class, u.feature, f.name AS feature_name, f.unit, u.period_key AS period, u.period_start, u.period_end,
       u.subscription_id, s.plan, u.amount, u.event_count, u.last_event_at
FROM usage_aggregates u
JOIN tenants t ON t.id = u.tenant_id AND t.mode = 'live'
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
JOIN tenants t ON t.id = l.tenant_id AND t.mode = 'live'
LEFT JOIN features f ON f.lookup_key = l.feature
LEFT JOIN subscriptions s ON s.id = l.subscription_id;

-- Differences of closed periods, each snapshot's.
CREATE VIEW reporting_adjustments AS
SELECT a.id, a.tenant_id, t.name AS tenant, a.feature, f.name AS feature_name, f.unit, a.period_key AS period, a.snapshot, a.kind, a.state, a.amount, a.event_count,
       a.subscription_id, a.source_event_id, a.reason
FROM adjustments a
JOIN tenants t ON t.id = a.tenant_id AND t.mode = 'live'
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

-- A view reads its tables with the rights of its owner, on whom row level security is forced, too. These policies let it read for others; the owner itself still
-- sees no row of tenants.
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
