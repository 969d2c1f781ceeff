// Package pgpipe implements the message pipe without Kafka: watermill-sql's tables and subscriber in the
// service's own PostgreSQL, behind the same interfaces as package kafka. A row is one frame of records.
//
// watermill-sql reads and acknowledges in one transaction, which is open while the handler runs. An open
// transaction that has written hides the rows of all later transactions from every consumer group. So after
// a failed batch a subscription ends its transaction first, and waits then.
//
// The pool behind DB needs two connections for each subscription: one to read, one to publish. The handlers
// have their own. Only Ensure creates tables, as their owner.
package pgpipe

import (
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/infra/watermill"
)

// Config configures the pipe's database.
type Config struct {
	// DB is a pool whose connections have the role meterplex_worker.
	DB          *sql.DB
	TopicPrefix string
	Logger      *slog.Logger
	// Arrivals is shared by the publishers and subscribers of a process in which all rows are published.
	// Its subscribers poll less often while none arrive. nil: rows of other processes are read as soon.
	Arrivals *Arrivals

	// AllowAnyTopic accepts topics outside the registry. MessageUUIDs stores a message's UUID in a
	// header. Watermill's own suite needs both.
	AllowAnyTopic bool
	MessageUUIDs  bool
}

func (c *Config) defaults() error {
	if c.DB == nil {
		return errors.New("pgpipe: no database")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// known returns the topic's number, or 0 for an allowed topic outside the registry.
func (c *Config) known(topic string) (events.Topic, error) {
	number, ok := events.TopicOf(topic)
	if !ok && !c.AllowAnyTopic {
		return 0, fmt.Errorf("topic %s: %w", topic, watermill.ErrUnknownTopic)
	}
	return number, nil
}

// messagesTable and offsetsTable return the quoted names of a topic's tables.
func (c *Config) messagesTable(topic string) string {
	return `"` + tableName("pipe_", c.TopicPrefix+topic) + `"`
}

func (c *Config) offsetsTable(topic string) string {
	return `"` + tableName("pipe_offsets_", c.TopicPrefix+topic) + `"`
}

// Tables returns the names of the tables of the registry's topics, as in pg_class.
func (c *Config) Tables() (names []string) {
	for _, topic := range registered() {
		names = append(names, strings.Trim(c.messagesTable(topic), `"`), strings.Trim(c.offsetsTable(topic), `"`))
	}
	return names
}

// maxName is the length at which PostgreSQL truncates names.
const maxName = 63

// tableName returns a table name. A name that is too long ends with a hash, so that it stays unique.
func tableName(kind, topic string) string {
	name := kind + identifier(topic)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(topic))
	return name[:maxName-9] + "_" + hex.EncodeToString(sum[:4])
}

func identifier(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}

// schema is watermill-sql's schema with our table names, BYTEA payloads, and a query that joins several
// rows into one.
type schema struct {
	wmsql.DefaultPostgreSQLSchema
}

func (c *Config) schema() schema {
	return schema{wmsql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: c.messagesTable,
		GeneratePayloadType:       func(string) string { return "BYTEA" },
	}}
}

// Bounds of one read. Acknowledging a read costs a commit, so the many small rows that a relay writes for
// single events must not be read one by one.
const (
	readRows  = 200
	readBytes = 8 << 20
)

// nextRows joins the next rows, each prefixed with its length, into one row with the uuid of the first
// and the place of the last. InitPlans pass the bounds, so that the primary key is scanned in order and
// the scan ends at the limit. A join with the group's row would sort all remaining rows.
const nextRows = `
WITH last_processed AS (%[2]s),
next AS (
  SELECT transaction_id, "offset", uuid, payload,
         sum(octet_length(payload)) OVER (ORDER BY transaction_id, "offset") AS bytes
  FROM (
    SELECT transaction_id, "offset", uuid, payload FROM %[1]s
    WHERE (transaction_id, "offset") > (
            (SELECT last_processed_transaction_id FROM last_processed),
            (SELECT offset_acked FROM last_processed))
      AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY transaction_id, "offset" LIMIT %[3]d) page)
SELECT (array_agg("offset" ORDER BY transaction_id DESC, "offset" DESC))[1],
       (array_agg(transaction_id ORDER BY transaction_id DESC, "offset" DESC))[1],
       (array_agg(uuid ORDER BY transaction_id, "offset"))[1],
       string_agg(int4send(octet_length(payload)) || payload, ''::bytea ORDER BY transaction_id, "offset"),
       NULL::json
FROM next WHERE bytes - octet_length(payload) < %[4]d
HAVING count(*) > 0`

// SelectQuery implements watermill-sql's interface.
func (s schema) SelectQuery(topic, group string, adapter wmsql.OffsetsAdapter) wmsql.Query {
	next := adapter.NextOffsetQuery(topic, group)
	return wmsql.Query{
		Query: fmt.Sprintf(nextRows, s.MessagesTable(topic), next.Query, readRows, readBytes),
		Args:  next.Args,
	}
}

// splitRows decodes the result of nextRows.
func splitRows(joined []byte) (records []events.Record, err error) {
	for len(joined) > 0 {
		if len(joined) < 4 || uint64(len(joined)-4) < uint64(binary.BigEndian.Uint32(joined)) {
			return records, errJoined
		}
		end := 4 + int(binary.BigEndian.Uint32(joined))
		frame, bad := codec.ParseFrame(joined[4:end])
		if bad != nil {
			err = bad
		}
		records, joined = append(records, frame...), joined[end:]
	}
	return records, err
}

var errJoined = errors.New("malformed joined rows")

// offsets is watermill-sql's adapter with a different lock on a group's row.
type offsets struct {
	wmsql.DefaultPostgreSQLOffsetsAdapter
	messages func(topic string) string
}

func (c *Config) offsets() offsets {
	return offsets{
		wmsql.DefaultPostgreSQLOffsetsAdapter{GenerateMessagesOffsetsTableName: c.offsetsTable},
		c.messagesTable,
	}
}

// nextOffset locks the group's row only if there are rows to read. A lock is a write: with
// watermill-sql's own query each idle poll costs a transaction id, WAL and an fsync at commit, and the
// lock hides new rows from us while another group's handler runs. SKIP LOCKED: a second member of the
// group polls again later, instead of holding a connection until the first has finished.
const nextOffset = `
SELECT offset_acked, last_processed_transaction_id
FROM %[1]s o
WHERE consumer_group = $1
  AND EXISTS (
    SELECT FROM %[2]s m
    WHERE (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)
      AND m.transaction_id < pg_snapshot_xmin(pg_current_snapshot()))
FOR UPDATE SKIP LOCKED`

// NextOffsetQuery implements watermill-sql's interface.
func (o offsets) NextOffsetQuery(topic, group string) wmsql.Query {
	return wmsql.Query{
		Query: fmt.Sprintf(nextOffset, o.MessagesOffsetsTable(topic), o.messages(topic)),
		Args:  []any{group},
	}
}
