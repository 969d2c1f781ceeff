package doctor

import (
	"context"
	"time"
)

// checks lists all checks, in the order of the output.
func checks() []check {
	list := []check{
		{"clocks", "database_clock", needsDatabase,
			"Synchronize the clocks of this machine and of the database server (NTP): usage is accepted by the one, and leases end " +
				"by the other", databaseClock},
		{"clocks", "broker_clock", needsKafka, "Synchronize the clocks of the brokers (NTP): rewinds to a time use the times of records",
			brokerClock},

		{"access", "database_login", needsDatabase,
			"Follow docs/how-to/database-logins.md: create the login and grant it the roles meterplex_worker and meterplex_tenant",
			databaseLogin},
	}
	list = append(list, dangerChecks()...)
	return append(list, []check{
		{"access", "database_tls", needsDatabase, "Add sslmode=verify-full and sslrootcert to DATABASE_URL", databaseTLS},
		{"access", "kafka_login", needsKafka, "Check KAFKA_BROKERS, KAFKA_TLS_* and KAFKA_SASL_*; the ACLs: docs/how-to/kafka-access.md",
			kafkaLogin},
		{"access", "kafka_tls", needsKafka, "Set KAFKA_TLS_ENABLED=true and KAFKA_TLS_CA", kafkaTLS},
		{"access", "certificates", needsNothing, "Replace the certificate; the service reads it at its start", certificates},
		{"access", "key_files", needsNothing, "chmod 600 the file, or 640 with a group that only the service has", keyFiles},
		{"access", "api_keys", needsDatabase, "meterplex keys rotate ID, and give the new secret to its owner", apiKeys},
		{"access", "traces", needsNothing,
			"Correct the variables OTEL_EXPORTER_OTLP_* and start the collector: docs/how-to/trace.md. Without traces: " +
				"METERPLEX_TRACE_RATIO=0", traces},

		{"replication", "monitoring_rights", needsDatabase,
			"GRANT pg_monitor TO the login of DATABASE_URL: without it replication cannot be seen", monitoringRights},
		{"replication", "synchronous_standby", needsDatabase,
			"Set synchronous_standby_names and repair the standby: docs/runbooks/failover.md", synchronousStandby},
		{"replication", "wal_archive", needsDatabase,
			"Set archive_mode and archive_command, and repair its destination; the server's log has the command's errors", walArchive},
		{"replication", "slots", needsDatabase, "Start the slot's reader, or drop it: SELECT pg_drop_replication_slot(name)", slots},
		{"replication", "retained_wal", needsDatabase, "Start or drop the slot that retains it; set max_slot_wal_keep_size", retainedWAL},

		{"tables", "server_version", needsDatabase, "Upgrade PostgreSQL to 15, 16, 17 or 18, at its last minor release", serverVersion},
		{"tables", "checksums", needsDatabase, "Stop the server and run pg_checksums --enable: without them a damaged page is not noticed",
			checksums},
		{"tables", "collation", needsDatabase,
			"REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION; without a recorded version: " +
				"docs/reference/doctor-checks.md", collation},
		{"tables", "connections", needsDatabase, "Raise max_connections, or change METERPLEX_DATABASE_CONNECTIONS: docs/how-to/sizing.md",
			connections},
		{"tables", "long_transactions", needsDatabase,
			"End the session: SELECT pg_terminate_backend(pid). It holds back vacuum and blocks migrations", longTransactions},
		{"tables", "prepared_transactions", needsDatabase,
			"COMMIT PREPARED or ROLLBACK PREPARED it: it holds locks and holds back vacuum for ever", preparedTransactions},
		{"tables", "autovacuum", needsDatabase, "Set autovacuum = on, and do not turn it off for a table", autovacuum},
		{"tables", "dead_rows", needsDatabase, "VACUUM the table; look for long transactions and inactive slots that hold it back",
			deadRows},
		{"tables", "freeze", needsDatabase, "VACUUM (FREEZE) the oldest tables, before the server stops to accept writes", freeze},
		{"tables", "invalid_indexes", needsDatabase,
			"meterplex migrate builds an index of its own again; REINDEX INDEX CONCURRENTLY the others", invalidIndexes},

		{"schema", "migrations", needsDatabase,
			"meterplex migrate; if the database is ahead, start the release that migrated it: docs/how-to/upgrade.md", schemaVersion},

		{"topics", "topics", needsKafka, "The role relay creates missing topics; without the ACL Create, create them with 32 " +
			"partitions: docs/how-to/kafka-access.md", topics},
		{"topics", "in_sync_replicas", needsKafka, "Repair the broker whose replicas are not in sync", inSyncReplicas},
		{"topics", "durability", needsKafka, "kafka-configs.sh --alter the topic: docs/reference/unsafe-settings.md, \"Kafka\"",
			durability},
		{"topics", "retention", needsKafka,
			"Raise retention.ms of the topic, or repair the consumer: it reads expired records from the log, more slowly", retention},

		{"pipeline", "service", needsService, "Read the reason at /readyz and in the log of the instance; METERPLEX_URL or --server " +
			"names another address", service},
		{"pipeline", "server_lives", needsDatabase,
			"docs/runbooks/failover.md if the server was promoted, docs/runbooks/restore.md if it was restored", serverLives},
		{"pipeline", "relay_leases", needsDatabase, "Start an instance with the role relay", relayLeases},
		{"pipeline", "outbox", needsDatabase, "Repair Kafka, or the relay by its log: docs/reference/outbox.md", outbox},
		{"pipeline", "withheld_records", needsDatabase,
			"meterplex dead-letters list --stage PUBLISHING, and retry or discard them: docs/how-to/dead-letters.md", withheldRecords},
		{"pipeline", "projection_lag", needsDatabase,
			"Start instances with the roles validator, aggregator, deadletter and projector, or read the error of the consumer " +
				"in their logs", projectionLag},
		{"pipeline", "projections", needsDatabase, "meterplex projections list; rebuild the projection: docs/how-to/rebuild.md",
			projectionState},
		{"pipeline", "dead_letters", needsDatabase,
			"meterplex dead-letters groups, then retry or discard them: docs/how-to/dead-letters.md", deadLetters},
		{"pipeline", "sagas", needsDatabase, "meterplex sagas list --state PARTIAL (and DRIFT): docs/reference/background-processes.md",
			sagas},
		{"pipeline", "erasures", needsDatabase,
			"An erasure of an ARCHIVED tenant is repeated within a minute by an instance with the role sagas and METERPLEX_ERASURES; " +
				"offboard the other tenants: docs/how-to/erase-personal-data.md", erased},
		{"pipeline", "pushes", needsDatabase, "meterplex pushes list --state FAILED (and UNKNOWN): docs/reference/stripe-deliveries.md",
			pushes},
		{"pipeline", "webhooks", needsDatabase,
			"Ask the tenant to repair the receiver, then meterplex webhooks enable it: docs/how-to/receive-webhooks.md", webhooks},
	}...)
}

// The bounds of the checks.
const (
	clockWarning, clockFailure       = time.Second, time.Minute
	expiryWarning                    = 14 * 24 * time.Hour
	archiveFailure                   = 5 * time.Minute
	transactionWarning               = 5 * time.Minute
	transactionFailure               = time.Hour
	unpublishedWarning               = 10 * time.Second
	unpublishedFailure               = time.Minute
	lagWarning, lagFailure           = 5 * time.Second, time.Minute
	livesWarning                     = 24 * time.Hour
	slotWAL                    int64 = 4 << 30     // bytes that a slot may retain without max_slot_wal_keep_size
	failedLetters, mostLetters int64 = 10, 100_000 // the latter are counted of each stage
	deadRowsLeast              int64 = 100_000
	frozenAge                  int64 = 1_000_000_000 // transactions; the server stops at some 2.1 billion
)

// statusOf returns the worse state of a duration by its bounds.
func statusOf(d, warning, failure time.Duration) State {
	switch {
	case d > failure:
		return Failure
	case d > warning:
		return Warning
	}
	return OK
}

// count runs a statement that counts rows, and names up to three of them.
func count(ctx context.Context, s *subject, sql string, args ...any) (n int64, names string, err error) {
	db, err := s.tables()
	if err != nil {
		return 0, "", err
	}
	err = db.QueryRow(ctx, `SELECT count(*), coalesce(string_agg(name, ', ' ORDER BY name) FILTER (WHERE at <= 3), '')
 FROM (SELECT name, row_number() OVER (ORDER BY name) AS at FROM (`+sql+`) found (name)) numbered`, args...).Scan(&n, &names)
	return n, names, err
}
