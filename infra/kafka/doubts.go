package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Doubts tells where topics may lose records that were acknowledged, or stop while a
// single broker is away. Neither loses usage, which is in the log, but both cost time.
func (a *Admin) Doubts(ctx context.Context) ([]string, error) {
	states, err := a.Topics(ctx)
	if err != nil {
		return nil, err
	}
	configs, err := a.admin.DescribeTopicConfigs(ctx, a.names()...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of the Kafka topics: %w", err)
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
		doubts = append(doubts, fmt.Sprintf("%s: each record is on one of %d brokers: without that one nothing is published, and what it had is gone with it", s.Name, brokers))
	}
	if unclean == "true" {
		doubts = append(doubts, s.Name+": unclean.leader.election.enable is true: a broker that has missed records may become their leader")
	}
	if s.Replicas >= replicas && least < minInSync {
		doubts = append(doubts, fmt.Sprintf("%s: min.insync.replicas is %d of %d: a record is acknowledged that one broker alone has", s.Name, least, s.Replicas))
	}
	if s.Replicas > 1 && least >= s.Replicas {
		doubts = append(doubts, fmt.Sprintf("%s: min.insync.replicas is %d of %d: nothing is published while one broker is away", s.Name, least, s.Replicas))
	}
	return doubts
}
