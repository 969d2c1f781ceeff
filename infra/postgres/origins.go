package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
)

// origin is what repeats in the events that one actor causes at one instance.
type origin struct {
	actor    events.Actor
	producer events.Producer
}

// maxOrigins bounds the cache; beyond it the cache starts anew.
const maxOrigins = 50_000

// origins keeps the numbers under which origins stand in the log. They never
// change, so what is cached is true for ever.
type origins struct {
	pool *pgxpool.Pool
	mu   sync.RWMutex
	ids  map[origin]int32
	byID map[int32]origin
}

func newOrigins(pool *pgxpool.Pool) *origins {
	return &origins{pool: pool, ids: map[origin]int32{}, byID: map[int32]origin{}}
}

func (o *origins) close() {
	if o.pool != nil {
		o.pool.Close()
	}
}

const insertOriginSQL = `WITH new AS (
 INSERT INTO log_origins (actor_type, actor_id, service, instance, commit) VALUES ($1, $2, $3, $4, $5)
 ON CONFLICT DO NOTHING RETURNING id)
SELECT id FROM new UNION ALL
SELECT id FROM log_origins WHERE actor_type = $1 AND actor_id = $2 AND service = $3 AND instance = $4 AND commit = $5 LIMIT 1`

// id gives the number of an origin, in a transaction of its own where it is new.
// Where another session adds the same one in this moment neither half of the
// statement sees it: asked again, it is there.
func (o *origins) id(ctx context.Context, v origin) (int32, error) {
	o.mu.RLock()
	id, ok := o.ids[v]
	o.mu.RUnlock()
	if ok {
		return id, nil
	}
	var err error
	for range 3 {
		err = o.pool.QueryRow(ctx, insertOriginSQL, v.actor.Type, v.actor.ID, v.producer.Service, v.producer.Instance, v.producer.Commit).Scan(&id)
		if err == nil {
			o.keep(id, v)
			return id, nil
		}
	}
	return 0, fmt.Errorf("recording the origin of events: %w", err)
}

func (o *origins) keep(id int32, v origin) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ids) >= maxOrigins {
		o.ids, o.byID = map[origin]int32{}, map[int32]origin{}
	}
	o.ids[v], o.byID[id] = id, v
}

// resolve gives the origins of numbers that were read from the log.
func (o *origins) resolve(ctx context.Context, q Queryer, ids []int32) (map[int32]origin, error) {
	known := make(map[int32]origin, 4)
	var missing []int32
	o.mu.RLock()
	for _, id := range ids {
		if _, ok := known[id]; ok {
			continue
		}
		if v, ok := o.byID[id]; ok {
			known[id] = v
		} else {
			missing = append(missing, id)
		}
	}
	o.mu.RUnlock()
	if len(missing) == 0 {
		return known, nil
	}
	rows, err := q.Query(ctx, `SELECT id, actor_type, actor_id, service, instance, commit FROM log_origins WHERE id = ANY($1)`, missing)
	if err != nil {
		return nil, fmt.Errorf("reading origins: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int32
		var v origin
		if err := rows.Scan(&id, &v.actor.Type, &v.actor.ID, &v.producer.Service, &v.producer.Instance, &v.producer.Commit); err != nil {
			return nil, fmt.Errorf("reading an origin: %w", err)
		}
		known[id] = v
		o.keep(id, v)
	}
	return known, rows.Err()
}
