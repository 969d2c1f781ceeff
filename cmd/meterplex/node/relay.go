package node

import (
	"time"

	"github.com/meterplex/meterplex/infra/relay"
)

func (n *Node) relay() *relay.Relay {
	return &relay.Relay{
		Pool: n.hot, Log: n.log, Recent: n.relaying, Appender: n.log, Publisher: n.pipe.publisher, Instance: n.instance, NewID: newID,
		Now: time.Now, Wake: n.notifier.Wake(), Followed: n.notifier.FollowUps(), Later: n.notifier.Later(), Hinted: n.notifier.Hearing,
		Ticks: n.ticks, Logger: n.logger, Observe: n.metrics.Relay(), Router: n.tracedRouter(),
	}
}
