package projections

// AuditReads answers queries for events: the log, its lineage, receipts, the identity.
type AuditReads struct{ DB }
