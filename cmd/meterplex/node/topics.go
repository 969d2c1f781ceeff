package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
)

// compareTopics raises the epoch of each partition whose topic is ahead of the log: the
// database was restored to an older state.
func (n *Node) compareTopics(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, compareTime)
	defer cancel()
	records, err := n.pipe.lastRecords(ctx)
	if err != nil {
		return err
	}
	return n.log.RaiseBeyond(ctx, records)
}

// compareTime bounds one comparison; compareEvery is the pause between retries while no broker answers.
const (
	compareTime  = 10 * time.Second
	compareEvery = 2 * time.Second
)

// compareTopicsLater repeats the comparison until it succeeds once.
func (n *Node) compareTopicsLater(ctx context.Context) error {
	log := retries.New(n.logger, slog.LevelWarn, "the topics cannot be compared with the log now; trying again until they can", "")
	for n.topicsDoubted && loop.Sleep(ctx, compareEvery) {
		err := n.compareTopics(ctx)
		log.Report(ctx, err)
		n.topicsDoubted = err != nil
	}
	return nil
}
