// Package pgpipe is the pipe where there is no Kafka: watermill-sql's tables and
// subscriber in the service's own PostgreSQL, behind the same interfaces as
// package kafka. A row is one frame of records.
//
// A subscription holds one connection and one open transaction while its handler
// runs (watermill-sql reads and acknowledges in one transaction), besides those
// that the handler itself takes: the pool behind DB needs at least one connection
// for each Subscribe and as many again for publishing. While a transaction is
// open that has written, rows of later ones are not read by any group (their
// order is not known before); so a batch that failed is given back, with its
// transaction, before the pause that follows.
//
// The tables are made by Ensure, as their owner; nothing here makes one by the way.
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
	"github.com/meterplex/meterplex/infra/watermill"
)

// Config says where the pipe's tables are.
type Config struct {
	// DB is a pool whose connections act as meterplex_worker.
	DB          *sql.DB
	TopicPrefix string
	Logger      *slog.Logger

	// AllowAnyTopic takes topics that the registry does not have, MessageUUIDs
	// keeps a message's UUID as a header: Watermill's own suite needs both.
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

// known gives the topic's number, 0 for one that is allowed but not registered.
func (c *Config) known(topic string) (events.Topic, error) {
	number, ok := events.TopicOf(topic)
	if !ok && !c.AllowAnyTopic {
		return 0, fmt.Errorf("topic %s: %w", topic, watermill.ErrUnknownTopic)
	}
	return number, nil
}

// messagesTable and offsetsTable name a topic's tables, quoted.
func (c *Config) messagesTable(topic string) string {
	return `"` + named("pipe_", c.TopicPrefix+topic) + `"`
}

func (c *Config) offsetsTable(topic string) string {
	return `"` + named("pipe_offsets_", c.TopicPrefix+topic) + `"`
}

// Tables names the tables of the registry's topics, as the catalogue does.
func (c *Config) Tables() (names []string) {
	for _, topic := range registered() {
		names = append(names, strings.Trim(c.messagesTable(topic), `"`), strings.Trim(c.offsetsTable(topic), `"`))
	}
	return names
}

// maxName is where PostgreSQL cuts a name off.
const maxName = 63

// named is a table's name; one that is too long ends with what tells it from others
// that begin as it does.
func named(kind, topic string) string {
	name := kind + plain(topic)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(topic))
	return name[:maxName-9] + "_" + hex.EncodeToString(sum[:4])
}

func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}

// schema is watermill-sql's, with our names, bytes for a payload, and a query
// that reads several rows as one.
type schema struct {
	wmsql.DefaultPostgreSQLSchema
}

func (c *Config) schema() schema {
	return schema{wmsql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: c.messagesTable,
		GeneratePayloadType:       func(string) string { return "BYTEA" },
	}}
}

// Bounds of what is read at once. Each read costs a commit when it is
// acknowledged, so that many small rows, which a relay writes under steady single
// events, must not be read one by one.
const (
	readRows  = 200
	readBytes = 8 << 20
)

// nextRows joins the next rows, each behind its length, into one that has the
// first one's uuid and the last one's place. The bounds come by InitPlan, so that
// the primary key is scanned in its order and the scan ends at the limit; joined
// to the group's row it would sort all that is left.
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

// SelectQuery is watermill-sql's interface.
func (s schema) SelectQuery(topic, group string, adapter wmsql.OffsetsAdapter) wmsql.Query {
	next := adapter.NextOffsetQuery(topic, group)
	return wmsql.Query{
		Query: fmt.Sprintf(nextRows, s.MessagesTable(topic), next.Query, readRows, readBytes),
		Args:  next.Args,
	}
}

// unjoin takes apart what nextRows joined.
func unjoin(joined []byte) (records []events.Record, err error) {
	for len(joined) > 0 {
		if len(joined) < 4 || uint64(len(joined)-4) < uint64(binary.BigEndian.Uint32(joined)) {
			return records, errJoined
		}
		end := 4 + int(binary.BigEndian.Uint32(joined))
		frame, bad := events.ParseFrame(joined[4:end])
		if bad != nil {
			err = bad
		}
		records, joined = append(records, frame...), joined[end:]
	}
	return records, err
}

var errJoined = errors.New("rows that were joined wrongly")

// offsets is watermill-sql's adapter but for how a group's row is locked.
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

// nextOffset locks the group's row only where there is something to read. A lock
// is a write: with watermill-sql's own query each idle poll costs a transaction
// id, WAL and an fsync at commit, and while another group's handler runs, its
// lock hides new rows from us. SKIP LOCKED: a second member of the group asks
// again later instead of holding a connection until the first one is done.
const nextOffset = `
SELECT offset_acked, last_processed_transaction_id
FROM %[1]s o
WHERE consumer_group = $1
  AND EXISTS (
    SELECT FROM %[2]s m
    WHERE (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)
      AND m.transaction_id < pg_snapshot_xmin(pg_current_snapshot()))
FOR UPDATE SKIP LOCKED`

// NextOffsetQuery is watermill-sql's interface.
func (o offsets) NextOffsetQuery(topic, group string) wmsql.Query {
	return wmsql.Query{
		Query: fmt.Sprintf(nextOffset, o.MessagesOffsetsTable(topic), o.messages(topic)),
		Args:  []any{group},
	}
}
