package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/localtest"
)

// Cluster is a set of brokers that replicate each other's records. Each is also a controller: while
// a majority runs, the others can stop and restart.
type Cluster []*localkafka.Broker

// StartCluster starts n brokers for this test, which end with it.
func StartCluster(t testing.TB, n int) Cluster {
	t.Helper()
	c, err := startCluster(context.Background(), localtest.Folder(t), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// An orderly stop would block: the last broker asks the others first.
		if err := errors.Join(c.Kill(), c.stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return c
}

// startCluster starts n brokers with their own folders in a directory, on newly chosen ports.
func startCluster(ctx context.Context, dir string, n int) (Cluster, error) {
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, fmt.Errorf("start a Kafka cluster: %w", err)
	}
	c, id := make(Cluster, n), localkafka.ClusterID()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range c {
		all.Go(func() {
			c[i], errs[i] = localkafka.Start(ctx, localkafka.Config{DataDir: filepath.Join(dir, fmt.Sprint(i+1)), Port: ports[i],
				Quorum: &localkafka.Quorum{ID: id, Node: i + 1, Controllers: ports[n:]}})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		started := slices.DeleteFunc(c, func(k *localkafka.Broker) bool { return k == nil })
		return nil, errors.Join(err, started.stop(context.WithoutCancel(ctx)))
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
func (c Cluster) each(do func(k *localkafka.Broker) error) error {
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
func (c Cluster) Kill() error { return c.each((*localkafka.Broker).Kill) }

// Restart starts all of them again, on the same ports and data.
func (c Cluster) Restart(ctx context.Context) error {
	return c.each(func(k *localkafka.Broker) error { return k.Restart(ctx) })
}

func (c Cluster) stop(ctx context.Context) error {
	return c.each(func(k *localkafka.Broker) error { return k.Stop(ctx) })
}
