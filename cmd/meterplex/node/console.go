package node

import (
	"context"
	"time"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// signInLink returns a function that opens a link to the console of this instance for the holder of the bootstrap operator key. It is nil
// if the instance serves no console, or has no such key.
func (n *Node) signInLink(url string) func(ctx context.Context) (string, error) {
	if !n.cfg.Console || !n.has("api") || n.cfg.BootstrapOperatorKey == "" {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		path, err := console.OpenLink(ctx, store.NewConsoleSessions(n.pool), newSecret(),
			auth.BootstrapSessionKey(n.cfg.BootstrapOperatorKey), time.Now())
		return url + path, err
	}
}
