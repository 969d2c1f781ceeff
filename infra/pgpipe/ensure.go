package pgpipe

import (
	"context"
	"fmt"

	"github.com/meterplex/meterplex/events"
)

// Table names are quoted identifiers made by identifier(). SQL has no parameters for identifiers.
const (
	// Rows of the messages table are inserted once and deleted once. The offsets row of a group is
	// updated with each batch and should stay on its page.
	ensureTables = `
ALTER TABLE %[2]s SET (fillfactor = 50);
GRANT SELECT, INSERT, DELETE ON %[1]s TO meterplex_worker;
GRANT SELECT, INSERT, UPDATE ON %[2]s TO meterplex_worker;
GRANT USAGE ON SEQUENCE %[3]s TO meterplex_worker;`
	sequenceOf = `SELECT pg_get_serial_sequence($1, 'offset')`
	// Without this lock, two concurrent migrations would both create the tables.
	lockEnsure = `SELECT pg_advisory_xact_lock(hashtext('meterplex.pgpipe'))`
)

// Ensure creates the missing tables of the registry's topics and of further topics, and grants
// meterplex_worker access. It runs during the migration of the schema; cfg.DB must connect as the owner.
func Ensure(ctx context.Context, cfg Config, further ...string) error {
	if err := cfg.defaults(); err != nil {
		return err
	}
	tx, err := cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("create the pipe's tables: %w", err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, lockEnsure); err != nil {
		return fmt.Errorf("create the pipe's tables: %w", err)
	}
	for _, topic := range append(registered(), further...) {
		for _, statement := range cfg.createStatements(topic) {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("create the pipe's tables for %s: %w", topic, err)
			}
		}
		var sequence string
		if err := tx.QueryRowContext(ctx, sequenceOf, cfg.messagesTable(topic)).Scan(&sequence); err != nil {
			return fmt.Errorf("find the sequence of %s: %w", topic, err)
		}
		grants := fmt.Sprintf(ensureTables, cfg.messagesTable(topic), cfg.offsetsTable(topic), sequence)
		if _, err := tx.ExecContext(ctx, grants); err != nil {
			return fmt.Errorf("grant the pipe's tables for %s: %w", topic, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("create the pipe's tables: %w", err)
	}
	return nil
}

func registered() []string {
	var names []string
	for _, t := range events.Topics() {
		names = append(names, t.Name)
	}
	return names
}

// createStatements returns watermill-sql's own statements.
func (c *Config) createStatements(topic string) []string {
	var statements []string
	for _, q := range c.schema().SchemaInitializingQueries(topic) {
		statements = append(statements, q.Query)
	}
	for _, q := range c.offsets().SchemaInitializingQueries(topic) {
		statements = append(statements, q.Query)
	}
	return statements
}
