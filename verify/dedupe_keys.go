package verify

import (
	"context"
	"hash/maphash"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func (x *pass) addKey(r *row, _ *content, _ error) { x.keys = append(x.keys, x.keyOf(r)) }

func (x *pass) keyOf(r *row) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	_, _ = h.Write(r.tenant[:])
	_, _ = h.Write(r.key)
	return h.Sum64()
}

const duplicatesSQL = `SELECT position, tenant_id, dedupe_key, l.payload_hash FROM event_log_rows l WHERE partition = $1 ORDER BY position`

// duplicates finds duplicate keys without the index that forbids them: first by a hash of each
// key, then by the keys with equal hashes.
func (x *pass) duplicates(ctx context.Context, tx pgx.Tx) error {
	x.dedupeKeys.n += int64(len(x.keys))
	slices.Sort(x.keys)
	suspects := map[uint64]bool{}
	for i := 1; i < len(x.keys); i++ {
		if x.keys[i] == x.keys[i-1] {
			suspects[x.keys[i]] = true
		}
	}
	x.keys = nil
	if len(suspects) == 0 {
		return nil
	}
	type name struct {
		tenant uuid.UUID
		key    string
	}
	type found struct {
		position int64
		hash     []byte
	}
	seen := map[name]found{}
	var r row
	return each(ctx, tx, duplicatesSQL, []any{x.p}, []any{&r.position, &r.tenant, &r.key, &r.hash}, func() error {
		if !suspects[x.keyOf(&r)] {
			return nil
		}
		k := name{r.tenant, string(r.key)}
		if first, twice := seen[k]; twice {
			what := "with the same payload"
			if string(first.hash) != string(r.hash) {
				what = "with another payload"
			}
			x.dedupeKeys.fault("tenant %s has the key %.80q at %s and at %s, %s", r.tenant, r.key, x.at(first.position), x.at(r.position),
				what)
			return nil
		}
		seen[k] = found{r.position, slices.Clone(r.hash)}
		return nil
	})
}
