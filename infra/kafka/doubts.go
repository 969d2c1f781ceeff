package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Doubts lists topics that may lose acknowledged records, or block while a single broker is away. Both
// delay usage, but do not lose it, because it is in the log.
func (a *Admin) Doubts(ctx context.Context) ([]string, error) {
	states, err := a.Topics(ctx)
	if err != nil {
		return nil, err
	}
	configs, err := a.admin.DescribeTopicConfigs(ctx, a.names()...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of the Kafka topics: %w", permission(err, a.topics("DescribeConfigs")))
	}
	brokers, err := a.brokers(ctx)
	if err != nil {
		return nil, err
	}
	var doubts []string
	for _, config := range configs {
		value := map[string]string{}
		for _, c := range config.Configs {
			value[c.Key] = c.MaybeValue()
		}
		at := slices.IndexFunc(states, func(s TopicState) bool { return s.Name == config.Name })
		if config.Err == nil && at >= 0 {
			doubts = append(doubts, doubtsOf(states[at], brokers, value["min.insync.replicas"], value["unclean.leader.election.enable"])...)
		}
	}
	slices.Sort(doubts)
	return doubts, nil
}

func doubtsOf(s TopicState, brokers int, inSync, unclean string) (doubts []string) {
	least, _ := strconv.Atoi(inSync)
	if brokers >= replicatedBrokers && s.Replicas == 1 {
		doubts = append(doubts, fmt.Sprintf("%s: each record has one replica on %d brokers: if that broker is down, publishing stops; "+
			"if it loses its disk, records are lost", s.Name, brokers))
	}
	if unclean == "true" {
		doubts = append(doubts, s.Name+": unclean.leader.election.enable is true: a broker without all records may become leader")
	}
	if s.Replicas >= replicas && least < minInSync {
		doubts = append(doubts, fmt.Sprintf("%s: min.insync.replicas is %d of %d: a record may be acknowledged with a single replica",
			s.Name, least, s.Replicas))
	}
	if s.Replicas > 1 && least >= s.Replicas {
		doubts = append(doubts, fmt.Sprintf("%s: min.insync.replicas is %d of %d: publishing stops while one broker is down", s.Name, least,
			s.Replicas))
	}
	return doubts
}
