package usage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// goldenLog holds verdicts of every form: usage, admitted usage, corrections, a retraction, a retried fold, late usage, and amounts whose
// sum no int64 holds. It never changes: the hashes of snapshots are compared for ever.
//
//go:embed golden_log.json
var goldenLog []byte

// LogicHash returns the hex SHA-256 of a fold's result over the golden log: versions that count differently there have different hashes.
// The result is a line for each figure: tenant, feature, period, subscription, amount, count and last time, separated by "|", in the order
// of the figures.
func (f PeriodFigures) LogicHash(version string) (string, error) {
	fold, err := f.Folds.Of(version)
	if err != nil {
		return "", err
	}
	var log []struct {
		Subject  events.Subject  `json:"subject"`
		TenantID uuid.UUID       `json:"tenantId"`
		Position int64           `json:"position"`
		Payload  json.RawMessage `json:"payload"`
		Times    int             `json:"times"` // how often the verdict is folded; 0: once
	}
	if err := json.Unmarshal(goldenLog, &log); err != nil {
		return "", fmt.Errorf("read the golden log: %w", err)
	}
	sums := map[Key]*usageSum{}
	for i := range log {
		l := &log[i]
		partition := events.PartitionOf(l.TenantID)
		e := events.Envelope{Subject: l.Subject, TenantID: l.TenantID, Payload: l.Payload,
			Position: events.Position{Partition: partition, Number: l.Position}}
		v, err := codec.VerdictOf(&e)
		if err != nil {
			return "", fmt.Errorf("read the golden log at %d: %w", l.Position, err)
		}
		key, delta, err := fold(&e, v)
		if err != nil {
			return "", fmt.Errorf("fold the golden log at %d: %w", l.Position, err)
		}
		for range max(1, l.Times) {
			addTo(sums, partition, key, delta)
		}
	}
	hash := sha256.New()
	for _, key := range slices.SortedFunc(maps.Keys(sums), Key.compare) {
		s := sums[key]
		fmt.Fprintf(hash, "%s|%s|%s|%s|%s|%d|%s\n", key.TenantID, key.Feature, key.PeriodKey, key.SubscriptionID, s.amount.String(),
			s.count, s.last.UTC().Format(time.RFC3339Nano))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
