package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/kafka"
	"github.com/meterplex/meterplex/projections/state"
)

func topics(ctx context.Context, s *subject) (State, string, error) {
	list, err := s.admin.Topics(ctx)
	if err != nil {
		return "", "", err
	}
	var missing, wrong []string
	for _, t := range list {
		switch {
		case t.Partitions == 0:
			missing = append(missing, t.Name)
		case t.Partitions != events.Partitions:
			wrong = append(wrong, fmt.Sprintf("%s has %d partitions", t.Name, t.Partitions))
		case !t.Ready:
			wrong = append(wrong, t.Name+" has a partition without a leader")
		}
	}
	switch {
	case len(wrong) > 0:
		return Failure, strings.Join(wrong, "; "), nil
	case len(missing) > 0:
		return Failure, "missing: " + strings.Join(missing, ", "), nil
	}
	return OK, fmt.Sprintf("%d topics with %d partitions each", len(list), events.Partitions), nil
}

func inSyncReplicas(ctx context.Context, s *subject) (State, string, error) {
	list, err := s.admin.Topics(ctx)
	if err != nil {
		return "", "", err
	}
	return replicaState(list)
}

func replicaState(list []kafka.TopicState) (State, string, error) {
	var behind []string
	for _, t := range list {
		if t.InSync < t.Replicas {
			behind = append(behind, fmt.Sprintf("%s: %d of %d", t.Name, t.InSync, t.Replicas))
		}
	}
	if len(behind) > 0 {
		return Failure, "replicas in sync, of the partition with the fewest: " + strings.Join(behind, "; "), nil
	}
	return OK, "all replicas are in sync", nil
}

func durability(ctx context.Context, s *subject) (State, string, error) {
	doubts, err := s.admin.Doubts(ctx)
	if err != nil {
		return "", "", err
	}
	if len(doubts) > 0 {
		return Warning, strings.Join(doubts, "; "), nil
	}
	return OK, "no setting of a topic risks records", nil
}

// retention compares the age of the oldest record that a consumer has to read with the time for which the brokers have it.
func retention(ctx context.Context, s *subject) (State, string, error) {
	kept, err := s.admin.Retention(ctx)
	if err != nil {
		return "", "", err
	}
	if s.DatabaseURL == "" {
		return Skipped, "set DATABASE_URL: the consumers' positions are in the database", nil
	}
	var lags state.Lags
	if err := s.read(ctx, &lags); err != nil {
		return "", "", err
	}
	worst, found := OK, []string{}
	for _, c := range lags.Consumers(nil) {
		limit, expires := kept[c.Topic]
		if !expires || c.Topic == 0 {
			continue
		}
		age := rounded(c.Seconds)
		if is := statusOf(age, limit/2, limit); is != OK {
			worst = worse(worst, is)
			found = append(found, fmt.Sprintf("%s has to read a record that is %s old, and the brokers delete it after %s", c.Name, age,
				limit))
		}
	}
	if len(found) == 0 {
		return OK, "no consumer lags by half of its topic's retention", nil
	}
	return worst, strings.Join(found, "; "), nil
}

// worse returns the more severe of two states of a found problem.
func worse(a, b State) State {
	if a == Failure || b == Failure {
		return Failure
	}
	return Warning
}
