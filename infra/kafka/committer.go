package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/twmb/franz-go/pkg/kgo"
)

// committer commits the marked offsets of a member. It waits for a mark: franz-go's own loop wakes each idle member at each interval.
type committer struct {
	client *kgo.Client
	marked loop.Hint
	closed chan struct{}
	loop   sync.WaitGroup
}

func newCommitter(client *kgo.Client) *committer {
	c := &committer{client: client, marked: loop.NewHint(), closed: make(chan struct{})}
	c.loop.Go(c.run)
	return c
}

// soon commits within commitEvery.
func (c *committer) soon() {
	c.marked.Notify()
}

func (c *committer) run() {
	for {
		select {
		case <-c.closed:
			return
		case <-c.marked:
		}
		select {
		case <-c.closed:
			return
		case <-time.After(commitEvery):
		}
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout) // a commit that is cancelled costs the connection
		if c.client.CommitMarkedOffsets(ctx) != nil {
			c.soon()
		}
		cancel()
	}
}

// close leaves the group, which commits the marked offsets, and closes the client.
func (c *committer) close() {
	close(c.closed)
	closeClient(c.client)
	c.loop.Wait()
}
