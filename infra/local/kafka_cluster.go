package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// KafkaCluster is brokers that hold copies of each other's records. Each is a
// controller, too: while most of them run, the others can end and come back.
type KafkaCluster []*Kafka

// StartKafkaCluster starts n brokers on folders of their own in cfg.DataDir, on
// ports that are chosen anew, whatever cfg.Port is. Else it is as StartKafka.
func StartKafkaCluster(ctx context.Context, cfg KafkaConfig, n int) (KafkaCluster, error) {
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, fmt.Errorf("start a Kafka cluster: %w", err)
	}
	c, id := make(KafkaCluster, n), clusterID()
	for i := range c {
		c[i] = newKafka(cfg, fmt.Sprint("kafka-", i+1), i+1)
		c[i].id, c[i].controllers = id, ports[n:]
	}
	var mu sync.Mutex
	var started KafkaCluster
	err = c.each(func(k *Kafka) error {
		err := k.start(ctx, kafkaPorts{broker: ports[k.node-1], controller: ports[n+k.node-1]})
		if err == nil {
			mu.Lock()
			started = append(started, k)
			mu.Unlock()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start a Kafka cluster: %w", errors.Join(err, started.Stop(context.WithoutCancel(ctx))))
	}
	return c, nil
}

// freePorts are different ones.
func freePorts(n int) (ports []int, err error) {
	for len(ports) < n {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// each does something with all of them at once: none is ready before most are.
func (c KafkaCluster) each(do func(k *Kafka) error) error {
	errs := make([]error, len(c))
	var all sync.WaitGroup
	for i, k := range c {
		all.Go(func() { errs[i] = do(k) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Brokers are the brokers' addresses.
func (c KafkaCluster) Brokers() (all []string) {
	for _, k := range c {
		all = append(all, k.Brokers()...)
	}
	return all
}

// Kill ends all of them at once; Restart brings them back.
func (c KafkaCluster) Kill() error { return c.each((*Kafka).Kill) }

// Restart starts all of them again, on the same ports and data.
func (c KafkaCluster) Restart(ctx context.Context) error {
	return c.each(func(k *Kafka) error { return k.Restart(ctx) })
}

// Stop shuts all of them down for good.
func (c KafkaCluster) Stop(ctx context.Context) error {
	return c.each(func(k *Kafka) error { return k.Stop(ctx) })
}
