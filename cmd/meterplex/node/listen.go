package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/infra/prometheus"
)

// endpoint is an HTTP server that listens on the address of a setting.
type endpoint struct {
	url      string
	server   *nethttp.Server
	listener net.Listener
	logger   *slog.Logger
	patience time.Duration // with open requests at a shutdown
	open     *atomic.Int64 // requests
}

// listen fails if the address is in use, or the certificate cannot be read.
func (n *Node) listen(setting, addr string, handler nethttp.Handler) (*endpoint, error) {
	server := http.NewServer(addr, handler)
	var err error
	if server.TLSConfig, err = httpTLS(n.cfg, n.logger, n.metrics.CertificateExpires); err != nil {
		return nil, err
	}
	listener, err := listenOn(setting, addr)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if server.TLSConfig != nil {
		scheme = "https"
	}
	e := &endpoint{scheme + "://" + listener.Addr().String(), server, listener, n.logger, shutHTTP, new(atomic.Int64)}
	server.Handler = e.counted(server.Handler)
	return e, nil
}

// counted counts the open requests of a handler.
func (e *endpoint) counted(handler nethttp.Handler) nethttp.Handler {
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		e.open.Add(1)
		defer e.open.Add(-1)
		handler.ServeHTTP(w, r)
	})
}

// listenOn binds an address. The error names the setting, the address and the remedy.
func listenOn(setting, addr string) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: the address %s is in use: end the process that listens on it, or give another address: %w", setting,
			addr, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: this process may not listen on %s: give a port above 1023, or the right: %w", setting, addr, err)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", setting, addr, err)
	}
	return listener, nil
}

// checkAddresses fails if an address that the instance needs cannot be bound. It runs before the
// database is migrated, and frees the addresses again: clients are refused until the service answers.
func checkAddresses(cfg config.Config) error {
	needed := map[string]string{}
	if slices.Contains(cfg.Roles, "api") {
		needed["METERPLEX_HTTP_ADDR"] = cfg.HTTPAddr
	}
	if cfg.AdminAddr != "" {
		needed["METERPLEX_ADMIN_ADDR"] = cfg.AdminAddr
	}
	for setting, addr := range needed {
		listener, err := listenOn(setting, addr)
		if err != nil {
			return err
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("free %s: %w", addr, err)
		}
	}
	return nil
}

// serve answers requests until the server is shut down.
func (e *endpoint) serve() error {
	serve := func() error { return e.server.Serve(e.listener) }
	if e.server.TLSConfig != nil {
		serve = func() error { return e.server.ServeTLS(e.listener, "", "") }
	}
	if err := serve(); !errors.Is(err, nethttp.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	return nil
}

// shut waits for open requests. Then it closes the connections of those that are left, which ends the contexts of their requests:
// a long answer holds a connection of the database, and the instance cannot end before it.
func (e *endpoint) shut() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.patience)
	defer cancel()
	err := e.server.Shutdown(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e.logger.Warn("ended requests that were open for longer than a shutdown waits", "requests", e.open.Load(), "waited", e.patience)
	if err := e.server.Close(); err != nil {
		e.logger.Warn("cannot close the connections of open requests", "error", err)
	}
	return nil
}

// shutHTTP is how long a shutdown waits for open requests.
const shutHTTP = 15 * time.Second

// serveHTTP starts the HTTP server and returns the function that stops it. An
// instance without the role api serves only health and metrics, and runs without
// HTTP if the address is in use: its roles do not need it. It does not listen at all
// if the admin address has these.
func (n *Node) serveHTTP(ctx context.Context, g *errgroup.Group) (url string, shut func() error, err error) {
	none := func() error { return nil }
	if !n.has("api") && n.cfg.AdminAddr != "" {
		return "", none, nil
	}
	handler, err := n.handler(ctx, g)
	if err != nil {
		return "", nil, err
	}
	e, err := n.listen("METERPLEX_HTTP_ADDR", n.cfg.HTTPAddr, handler)
	if taken := (*net.OpError)(nil); errors.As(err, &taken) && !n.has("api") {
		n.logger.Warn("this instance serves no health and no metrics: set a METERPLEX_HTTP_ADDR that is free", "error", err)
		return "", none, nil
	}
	if err != nil {
		return "", nil, err
	}
	if n.has("api") {
		n.traceRequests(e.server)
	}
	g.Go(e.serve)
	return e.url, e.shut, nil
}

// admin is the server of METERPLEX_ADMIN_ADDR; the zero admin is an instance without it.
type admin struct {
	url  string
	stop func() error
}

// serveAdmin starts the admin server. It runs before and after all other parts, so that
// operators can see how an instance starts and ends.
func (n *Node) serveAdmin() (admin, error) {
	if n.cfg.AdminAddr == "" {
		return admin{stop: func() error { return nil }}, nil
	}
	handler, err := n.adminHandler()
	if err != nil {
		return admin{}, err
	}
	e, err := n.listen("METERPLEX_ADMIN_ADDR", n.cfg.AdminAddr, handler)
	if err != nil {
		return admin{}, err
	}
	ended := make(chan error, 1)
	go func() { ended <- e.serve() }()
	return admin{e.url, func() error { return errors.Join(e.server.Close(), <-ended) }}, nil
}

// handler returns the API, or only the health endpoints if the instance lacks the
// role api.
func (n *Node) handler(ctx context.Context, g *errgroup.Group) (nethttp.Handler, error) {
	server := n.health()
	server.Registerer = n.registry
	if !n.has("api") {
		return server.HealthHandler()
	}
	server.AdminElsewhere = n.cfg.AdminAddr != ""
	server.IdleTime, server.AddressConnections = n.cfg.HTTPIdle, n.cfg.HTTPOfOne
	n.traceAPI(server)
	n.api(ctx, g, server)
	return server.Handler()
}

// adminHandler returns health, metrics and profiles. Its own requests are not counted in the
// metrics beside those of the API.
func (n *Node) adminHandler() (nethttp.Handler, error) {
	server := n.health()
	server.Health = append(server.Health, api.HealthCheck{Name: "roles", Check: n.checkServing})
	if !n.has("api") {
		server.Registerer = n.registry
	}
	return server.AdminHandler()
}

// health returns a server of the instance's health and metrics.
func (n *Node) health() *http.Server {
	return &http.Server{
		NewID: newIDAt, Logger: n.logger, Now: time.Now, Version: n.commit, Instance: n.described(),
		Health: []api.HealthCheck{
			{Name: "database", Check: n.pool.Ping},
			// An instance that ingests usage must stay ready while Kafka is unreachable (P11).
			{Name: n.cfg.Pipe, Check: n.pipe.ping, Spare: n.has("api")},
		},
		Metrics: prometheus.NewScrapes(n.registry, time.Now),
	}
}

// described describes the instance, without its secrets.
func (n *Node) described() api.ServiceInstance {
	i := api.ServiceInstance{ID: n.instance, Roles: n.cfg.Roles}
	for _, s := range n.cfg.Resolved {
		i.Settings = append(i.Settings, api.Setting{Name: s.Name, Value: s.Shown(), Origin: s.Source})
	}
	return i
}

// checkServing fails while the instance starts or ends.
func (n *Node) checkServing(context.Context) error {
	if !n.serving.Load() {
		return errors.New("the instance starts or ends")
	}
	return nil
}

// httpTLS reads the certificate before the server listens, and again when its files change; nil means plain HTTP.
func httpTLS(cfg config.Config, logger *slog.Logger, expires func(time.Time)) (*tls.Config, error) {
	if cfg.HTTPTLSCert == "" {
		return nil, nil
	}
	pair, err := config.ReadKeyPair(cfg.HTTPTLSCert, cfg.HTTPTLSKey, logger)
	if err != nil {
		return nil, fmt.Errorf("reading METERPLEX_HTTP_TLS_CERT and METERPLEX_HTTP_TLS_KEY: %w", err)
	}
	current := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := pair.Current()
		expires(now.Leaf.NotAfter)
		return now, nil
	}
	_, _ = current(nil)
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: current}, nil
}
