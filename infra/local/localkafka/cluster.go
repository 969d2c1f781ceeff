package localkafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/meterplex/meterplex/infra/local/child"
)

// Cluster is a set of brokers that replicate each other's records. Each is also a controller: while
// a majority runs, the others can stop and restart.
type Cluster []*Broker

// StartCluster starts n brokers with their own folders in cfg.DataDir, on newly chosen ports;
// cfg.Port is ignored. Otherwise it works like Start.
func StartCluster(ctx context.Context, cfg Config, n int) (Cluster, error) {
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, fmt.Errorf("start a Kafka cluster: %w", err)
	}
	c, id := make(Cluster, n), clusterID()
	for i := range c {
		c[i] = newBroker(cfg, fmt.Sprint("kafka-", i+1), i+1)
		c[i].id, c[i].controllers = id, ports[n:]
	}
	var mu sync.Mutex
	var started Cluster
	err = c.each(func(k *Broker) error {
		err := k.start(ctx, brokerPorts{broker: ports[k.node-1], controller: ports[n+k.node-1]})
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

// freePorts returns distinct ports.
func freePorts(n int) (ports []int, err error) {
	for len(ports) < n {
		port, err := child.FreePort()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// each calls do for all brokers concurrently: no broker is ready before a majority is.
func (c Cluster) each(do func(k *Broker) error) error {
	errs := make([]error, len(c))
	var all sync.WaitGroup
	for i, k := range c {
		all.Go(func() { errs[i] = do(k) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Brokers returns the brokers' addresses.
func (c Cluster) Brokers() (all []string) {
	for _, k := range c {
		all = append(all, k.Brokers()...)
	}
	return all
}

// Kill ends all brokers at once. Restart starts them again.
func (c Cluster) Kill() error { return c.each((*Broker).Kill) }

// Restart starts all of them again, on the same ports and data.
func (c Cluster) Restart(ctx context.Context) error {
	return c.each(func(k *Broker) error { return k.Restart(ctx) })
}

// Stop shuts all brokers down permanently.
func (c Cluster) Stop(ctx context.Context) error {
	return c.each(func(k *Broker) error { return k.Stop(ctx) })
}
