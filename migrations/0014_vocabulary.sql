-- +goose Up
-- Every vocabulary that an event was recorded under: subjects, topics, schemas and
-- retention classes, as a document whose SHA-256 is its name. Binaries that do not
-- hold a vocabulary read it here. Rows are only added.
CREATE TABLE log_vocabularies (
  hash     text COLLATE "C" PRIMARY KEY,
  document text NOT NULL,
  CHECK (hash = encode(sha256(convert_to(document, 'UTF8')), 'hex'))
);
GRANT SELECT, INSERT ON log_vocabularies TO meterplex_worker;
GRANT SELECT ON log_vocabularies TO meterplex_tenant;

-- The first: every event that was recorded before this migration has it.
INSERT INTO log_vocabularies (hash, document) VALUES ('2e01159dcbb8aeb818984ffa27cfc44828cd6c663dc299f299ba6b9476ffdf38',
$document${"subjects":[
{"subject":1,"type":"meterplex.usage.event.recorded","version":1,"topic":"usage.raw","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.recorded/v1#sha256=84f96ca9e18cde0c17460dd019baf9ed69d49887ddb50046830222b7f5a93ec5"},
{"subject":2,"type":"meterplex.usage.event.validated","version":1,"topic":"usage.validated","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.validated/v1#sha256=ee5d7e696e7e878cfb203bda2d142e69290b31e338e8a1216f63c55702a4d009"},
{"subject":3,"type":"meterplex.usage.event.rejected","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.rejected/v1#sha256=d5ff733ee3bcbba783919571b3103e004831e4750675cf191755b7899b6210ae"},
{"subject":4,"type":"meterplex.usage.event.conflicted","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.conflicted/v1#sha256=0446a4db3469eff1aa0570eff6034c29ee3753a267d9aad23a09a90c99e105b7"},
{"subject":5,"type":"meterplex.usage.event.duplicates_seen","version":1,"topic":"usage.duplicates","retention":"hot","schemaUri":"/api/v1/schemas/meterplex.usage.event.duplicates_seen/v1#sha256=96d79c73937c4e822ce0404eda66dedcaf0e4a8184388602990800c8536c0d59"},
{"subject":6,"type":"meterplex.usage.event.retried","version":1,"topic":"usage.raw","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.retried/v1#sha256=7b7301018d09619202f5b06083dcf7b8a20425a8e9d9eefc8ee19cd0bbe1ebf7"},
{"subject":7,"type":"meterplex.usage.command.refused","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.command.refused/v1#sha256=fc01405bd598fb46626049b69efd4c4c955fa5877cf2e1ece0e60925a095b8bd"},
{"subject":10,"type":"meterplex.usage.event.publish_failed","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.publish_failed/v1#sha256=18587d3873f12d103d765927d427e7e0c6b437afb740f713abaad2295517f1ca"},
{"subject":11,"type":"meterplex.usage.event.aggregation_failed","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.aggregation_failed/v1#sha256=221e6162d4e6b38636cb9c0c539ba15b03b3521562274d3bf76e832495a4eb80"},
{"subject":12,"type":"meterplex.usage.event.reaggregated","version":1,"topic":"usage.validated","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.usage.event.reaggregated/v1#sha256=26a75512481d0ad67cbe0b727afb54df73e2ac9cd4db772aa3f44aed8ccaba96"},
{"subject":13,"type":"meterplex.dead_letters.dead_letter.retry_requested","version":1,"topic":"meterplex.commands","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.dead_letters.dead_letter.retry_requested/v1#sha256=35021518bb61b3031082b93df6453e5dbf38167d876c509fe95e216fb5d40d83"},
{"subject":14,"type":"meterplex.dead_letters.dead_letter.retried","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.dead_letters.dead_letter.retried/v1#sha256=bcaf86e72c45a222abe65c2018fe907c800d65cd5a2d2b8b8e54789194e3843d"},
{"subject":15,"type":"meterplex.dead_letters.dead_letter.closed","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.dead_letters.dead_letter.closed/v1#sha256=f8f02a9b43992c695c42b85403b1dbaad7e3e871182898204323f1d5d700c9b7"},
{"subject":16,"type":"meterplex.dead_letters.dead_letter.retry_refused","version":1,"topic":"usage.dead-letter","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.dead_letters.dead_letter.retry_refused/v1#sha256=330a9221722e2c47cbdd76648cb0631bc801b6f17ece08e10ff9ae3a59f53e78"},
{"subject":17,"type":"meterplex.dead_letters.bulk.requested","version":1,"topic":"meterplex.commands","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.dead_letters.bulk.requested/v1#sha256=ef1de90234e500f1b61390d705535a021b3f56feb64a8d9485d2a4fd8cc6e299"},
{"subject":18,"type":"meterplex.dead_letters.record.parked","version":1,"topic":"usage.dead-letter","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.dead_letters.record.parked/v1#sha256=f2954c21581ee61e68de1f102354fd6d1c158ce161f85484856d3463eb2b393c"},
{"subject":30,"type":"meterplex.catalogue.tenant.created","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.tenant.created/v1#sha256=8b75f58b738ad3c4adfbeeb9b4e48e8c94885320b1659d250841a8e3ffa8badf"},
{"subject":31,"type":"meterplex.catalogue.tenant.changed","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.tenant.changed/v1#sha256=a33b89a9dbecd850525d53ee20da9d9e9c2ae14a70187bafc42880bddd2e9d47"},
{"subject":32,"type":"meterplex.catalogue.api_key.created","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.api_key.created/v1#sha256=bc5c32db2cf6e8f62119dfa1eff47360b643b29b10b38c166c9d9920db5c50d0"},
{"subject":33,"type":"meterplex.catalogue.api_key.rotated","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.api_key.rotated/v1#sha256=f393b81c03c3f1e13a045f0b3e39b0456e1250300ceebcbec36418cdebf0de5c"},
{"subject":34,"type":"meterplex.catalogue.api_key.revoked","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.api_key.revoked/v1#sha256=c27474fdbff7c784bba0b3c2f13ea77d9baeaf60647fd43b1d934909d370b57f"},
{"subject":35,"type":"meterplex.catalogue.feature.defined","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.feature.defined/v1#sha256=1defa38a52c0486d6b65560b927ade23967b71c7103da0507f43abbd46225656"},
{"subject":36,"type":"meterplex.catalogue.plan.defined","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.plan.defined/v1#sha256=8fd097c2bafcb91e342c010ba9fd74e66e01c0a57d5ad4fef923d1f940daa35c"},
{"subject":37,"type":"meterplex.catalogue.subscription.created","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.subscription.created/v1#sha256=f2f6b62fd42f8ba688588c1036bd851e94ab9d259a4b7becb4dac167ac24019f"},
{"subject":38,"type":"meterplex.catalogue.subscription.changed","version":1,"topic":"meterplex.catalogue","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.catalogue.subscription.changed/v1#sha256=2497951d853285e8f4aba883f652fdf137ddb9127318e7efa6db150a5b7d5e68"},
{"subject":40,"type":"meterplex.projections.rebuild.requested","version":1,"topic":"meterplex.commands","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.requested/v1#sha256=ac4ae9aee9ba4a96e6664ca3db0e118086fdb95cbf0b10c2d61a11dd07448988"},
{"subject":41,"type":"meterplex.projections.rebuild.readied","version":1,"topic":"meterplex.billing","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.readied/v1#sha256=929cff97d1a8f2d1d762c90d1c47cc2a7aee5f6180c03344d85409c02e006e91"},
{"subject":42,"type":"meterplex.projections.rebuild.promoted","version":1,"topic":"meterplex.billing","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.promoted/v1#sha256=cc3aa48104999324b690f83e5aff05b90210f7d15a75f6ab0c29bb46a6e27eef"},
{"subject":43,"type":"meterplex.projections.rebuild.rolled_back","version":1,"topic":"meterplex.billing","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.rolled_back/v1#sha256=dd0c0edd33a691ef13fd37cd86a2967cd95074845e2710bad0cc57bc10d3ab4d"},
{"subject":44,"type":"meterplex.projections.rebuild.abandoned","version":1,"topic":"meterplex.billing","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.abandoned/v1#sha256=f56d081798c1d225452e3d59a61fe1071c21c2f8721fd0dcebf1b8e80be8e2f7"},
{"subject":45,"type":"meterplex.projections.rebuild.failed","version":1,"topic":"meterplex.billing","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.projections.rebuild.failed/v1#sha256=222f8b8a623eb6444664744bc125169eb19e7068b91bd297737d5ab1e1ef9bcd"},
{"subject":46,"type":"meterplex.projections.projection.verified","version":1,"topic":"meterplex.billing","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.projections.projection.verified/v1#sha256=15f3c60b388eb2feccc57510d6553923337c09f8cf370e4f13ff9f454570d97f"},
{"subject":50,"type":"meterplex.replay.range.requested","version":1,"topic":"meterplex.commands","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.replay.range.requested/v1#sha256=2dbc75c0a8d4d1ad16f76597e68d53cc826c9ca7ca8a9ca7e165f2a9916078b7"},
{"subject":51,"type":"meterplex.replay.range.done","version":1,"topic":"meterplex.commands","retention":"warm","schemaUri":"/api/v1/schemas/meterplex.replay.range.done/v1#sha256=6989fa9485dfc4e82ed768b3a902f9bc4c9da5873f677b66351de012e01647a6"},
{"subject":52,"type":"meterplex.replay.cursor.rewound","version":1,"topic":"meterplex.commands","retention":"cold","schemaUri":"/api/v1/schemas/meterplex.replay.cursor.rewound/v1#sha256=b1a72f254090919cdce63eef6927299ee12de70b76d83d603d1cd5a47fda1e88"}
]}
$document$);

-- tenants before log_origins: a change of the catalogue reads its tenant, then records
-- its origin on another connection.
ALTER TABLE tenants
  ADD COLUMN data_residency text COLLATE "C" NOT NULL DEFAULT 'unspecified' CHECK (data_residency ~ '^[a-z][a-z0-9-]{0,31}$');

-- The defaults are for the rows of before, and for binaries that do not name the
-- columns: they record under the first vocabulary, without a residency.
ALTER TABLE log_origins
  ADD COLUMN vocabulary text COLLATE "C" NOT NULL DEFAULT '2e01159dcbb8aeb818984ffa27cfc44828cd6c663dc299f299ba6b9476ffdf38' REFERENCES log_vocabularies (hash),
  ADD COLUMN residency  text COLLATE "C" NOT NULL DEFAULT 'unspecified' CHECK (residency ~ '^[a-z][a-z0-9-]{0,31}$'),
  DROP CONSTRAINT log_origins_actor_type_actor_id_service_instance_commit_key,
  ADD CONSTRAINT log_origins_values UNIQUE (actor_type, actor_id, service, instance, commit, vocabulary, residency);

-- Origins are shared by all tenants. The residency of one is shown to the tenants'
-- role for that tenant's own events only, by the function below.
REVOKE SELECT ON log_origins FROM meterplex_tenant;
GRANT SELECT (id, actor_type, actor_id, service, instance, commit, vocabulary) ON log_origins TO meterplex_tenant;

-- The residencies under which events were recorded: one row for each place, in the
-- order of the lists. NULL if there is no event, or it is another tenant's.
-- +goose StatementBegin
CREATE FUNCTION recorded_residencies(of_partitions smallint[], of_positions bigint[])
RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100
SET search_path = public, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  all_tenants boolean := current_setting('role') <> 'meterplex_tenant';
  tenant      uuid    := asking(NULL);
BEGIN
  RETURN QUERY
  SELECT (SELECT o.residency FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
           WHERE l.partition = u.partition AND l.position = u.number AND (all_tenants OR l.tenant_id = tenant))
    FROM unnest(of_partitions, of_positions) WITH ORDINALITY AS u (partition, number, n)
   ORDER BY u.n;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION recorded_residencies FROM PUBLIC;
GRANT EXECUTE ON FUNCTION recorded_residencies TO meterplex_worker, meterplex_tenant;

INSERT INTO required_migrations VALUES
  (14, 'they publish events that newer ones recorded with schemas and a residency that are not those of the events');
