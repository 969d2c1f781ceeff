package audit

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// System describes the log of an installation: its id, the lives of the database server that it
// has seen, and where each partition's present epoch begins.
type System struct {
	LogID      uuid.UUID         `json:"logId" doc:"The log's name in the headers of its records on Kafka (mp-log)."`
	Lives      []ServerLife      `json:"lives"`
	Partitions []PartitionSystem `json:"partitions"`
}

// ServerLife is one life of the database server: an epoch of each partition that was raised in it.
type ServerLife struct {
	Reason           string     `json:"reason" enum:"first,restarted,promoted,restored,set_back"`
	SystemIdentifier string     `json:"systemIdentifier" doc:"PostgreSQL's, as decimal text."`
	Timeline         int64      `json:"timeline"`
	StartedAt        *time.Time `json:"startedAt" doc:"Start of the server; null for epochs of releases that did not record it."`
	RaisedAt         time.Time  `json:"raisedAt" doc:"When the first partition's epoch began."`
	Partitions       int        `json:"partitions" doc:"Number of partitions whose epoch was raised."`
}

// PartitionSystem is the present epoch of a log partition.
type PartitionSystem struct {
	Partition int16           `json:"partition"`
	Head      events.Position `json:"head"`
	Epoch     int32           `json:"epoch"`
	From      events.Position `json:"epochFrom"`
}

const (
	readLogID = `SELECT log_id FROM log_identity`

	readLives = `
SELECT reason, system_identifier::text, timeline, started_at, min(raised_at), count(*)
FROM log_epochs GROUP BY reason, system_identifier, timeline, started_at
ORDER BY min(raised_at) DESC, started_at DESC LIMIT 20`

	readPartitionEpochs = `
SELECT h.partition, h.position, h.epoch, coalesce(e.from_position, 1)
FROM log_heads h LEFT JOIN log_epochs e ON e.partition = h.partition AND e.epoch = h.epoch
ORDER BY h.partition`
)

// System reads all of it in one snapshot, for operators.
func (r *Reads) System(ctx context.Context) (System, error) {
	s := System{Lives: []ServerLife{}, Partitions: make([]PartitionSystem, 0, events.Partitions)}
	err := r.ForSystem().Snapshot(ctx, query.Viewer{Operator: true},
		query.New(readLogID, nil, query.One(&s.LogID)),
		query.New(readLives, nil, query.Each(func(rows pgx.Rows) error {
			var l ServerLife
			err := rows.Scan(&l.Reason, &l.SystemIdentifier, &l.Timeline, &l.StartedAt, &l.RaisedAt, &l.Partitions)
			s.Lives = append(s.Lives, l)
			return err
		})),
		query.New(readPartitionEpochs, nil, query.Each(func(rows pgx.Rows) error {
			var p PartitionSystem
			err := rows.Scan(&p.Partition, &p.Head.Number, &p.Epoch, &p.From.Number)
			p.Head.Partition, p.From.Partition = p.Partition, p.Partition
			s.Partitions = append(s.Partitions, p)
			return err
		})))
	return s, err
}
