// Package logtest opens logs in tests, and runs consumers of them as the service does: on a router. It is for tests only.
package logtest

import (
	"context"
	"errors"
	"time"

	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/projections/consume"
)

// Follow runs a consumer of the log on a router, as the service does, until ctx ends.
func Follow(ctx context.Context, r *consume.Runner, every time.Duration, wake <-chan struct{}) error {
	return runLog(ctx, r, &watermill.LogSubscriber{Ahead: r.Ahead, Every: every, Wake: wake, Grace: time.Minute, Logger: r.Logger})
}

// FollowTopic runs a consumer of a topic on a router, without the pipe, until ctx ends.
func FollowTopic(ctx context.Context, r *consume.Runner, every time.Duration) error {
	sub := &watermill.LogSubscriber{Ahead: r.Waiting, Every: every, Eager: true, Grace: time.Minute, Logger: r.Logger}
	if r.Recent != nil {
		sub.Wake = r.Recent.Ready()
	}
	return runLog(ctx, r, sub)
}

func runLog(ctx context.Context, r *consume.Runner, sub *watermill.LogSubscriber) error {
	router, err := watermill.NewRouter(r.Logger, nil)
	if err != nil {
		return err
	}
	watermill.AddLogConsumer(router, r.Consumer.Name, sub, r.ReadUpTo)
	return errors.Join(router.Run(ctx), sub.Close())
}
