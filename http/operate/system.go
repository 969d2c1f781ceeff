// Package operate answers the operations of the service as a whole: health, state, instances, sagas and its reference.
package operate

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/audit"
)

func (s *handlers) systemOperations(t *api.Site) {
	operators := []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/system/identity", Who: auth.Operator, Scopes: operators,
		ID: "getIdentity", Tag: "System",
		Summary: "Read the balance check", Description: "accepted = aggregated + rejected + inFlight + parked, in one snapshot: where " +
			"every accepted event is. total and partitions have inFlight as undecided + unapplied."}, s.identity)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/system", Who: auth.Operator, Scopes: operators, ID: "getSystem",
		Tag:     "System",
		Summary: "Show the log's id and the lives of its database server", Description: "A server that was restarted, promoted or " +
			"restored is in another life, and each log partition begins a new epoch. The procedure is in docs/runbooks/failover.md."},
		s.system)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: api.Prefix + "/system/instance", Who: auth.Operator,
		Scopes: []string{commands.ScopeBilling, commands.ScopeAudit, commands.ScopeAdmin}, ID: "getInstance", Tag: "System",
		Summary:     "Show the instance that answers, with its settings",
		Description: "Each setting with its value and its origin, as `meterplex config print` shows them. Passwords and keys are masked."},
		s.instance)
	s.instanceOperations(t)
	if !s.AdminElsewhere {
		s.healthOperations(t, s.privately)
	}
	t.ServePlain(api.Operation{Method: http.MethodGet, Path: "/openapi.json", Who: auth.Public},
		serveDocument(t, "application/json", func() ([]byte, error) { return json.Marshal(t.API.OpenAPI()) }))
	t.ServePlain(api.Operation{Method: http.MethodGet, Path: "/openapi.yaml", Who: auth.Public},
		serveDocument(t, "application/yaml", t.API.OpenAPI().YAML))
	t.ServePlain(api.Operation{Method: http.MethodGet, Path: "/docs", Who: auth.Public}, newReference())
}

// healthOperations are those of liveness, readiness and metrics. guard decides on requests for metrics.
func (s *handlers) healthOperations(t *api.Site, guard func(metrics http.Handler) http.Handler) {
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: "/livez", Who: auth.Public, ID: "live", Tag: "System",
		Summary: "Is the process alive?", Description: "200 as long as the process answers; it checks no dependency."}, s.live)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: "/readyz", Who: auth.Public, ID: "ready", Tag: "System",
		Summary: "Can the process serve?",
		Description: "Asks each dependency, and names those that do not answer. 503 if one of them is needed; Kafka's absence costs " +
			"latency only, so an instance of the API is ready without it."}, s.ready)
	metrics := s.Metrics
	if metrics == nil {
		metrics = http.NotFoundHandler()
	}
	t.ServePlain(api.Operation{Method: http.MethodGet, Path: "/metrics", Who: auth.Public}, guard(metrics))
}

// privately refuses requests that arrived at an address of the internet: metrics need no key, and show how much is metered and how far the
// service is behind.
func (s *handlers) privately(metrics http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && isPublic(at.AddrPort().Addr()) {
			s.Edge.Refuse(w, r, problem.New("not_found", "Metrics are not served at the public address "+at.IP.String()+
				": scrape a private address of this instance, or set METERPLEX_ADMIN_ADDR"))
			return
		}
		metrics.ServeHTTP(w, r)
	})
}

// sharedAddresses are those of networks behind a provider's translation of addresses (RFC 6598); some clusters use them for pods.
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// isPublic reports whether hosts of the internet may reach an address. In doubt they may, as at addresses of tunnels (6to4, Teredo);
// webhook.Addresses has the opposite rule for them, since no webhook may be sent there.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedAddresses.Contains(a)
}

func (s *handlers) identity(ctx context.Context, _ *struct{}) (*api.Answer[audit.Identity], error) {
	return api.AnswerOf(s.Reads.Events.Identity(ctx))
}

func (s *handlers) system(ctx context.Context, _ *struct{}) (*api.Answer[audit.System], error) {
	return api.AnswerOf(s.Reads.Events.System(ctx))
}

func (s *handlers) instance(context.Context, *struct{}) (*api.Answer[api.ServiceInstance], error) {
	i := s.Instance
	i.Version = s.Version
	if i.Roles == nil {
		i.Roles = []string{}
	}
	if i.Settings == nil {
		i.Settings = []api.Setting{}
	}
	return api.AnswerOf(i, nil)
}

type health struct {
	Status       string            `json:"status" enum:"live,ready"`
	Version      string            `json:"version"`
	Dependencies map[string]string `json:"dependencies,omitempty"`
}

func (s *handlers) live(context.Context, *struct{}) (*api.Answer[health], error) {
	return api.AnswerOf(health{Status: "live", Version: s.Version}, nil)
}

// Timeouts of dependency checks. Optional dependencies get less time, so that they cannot
// use up the caller's timeout.
const (
	readyTime = 3 * time.Second
	spareTime = 500 * time.Millisecond
)

func (s *handlers) ready(ctx context.Context, _ *struct{}) (*api.Answer[health], error) {
	answer := health{Status: "ready", Version: s.Version, Dependencies: map[string]string{}}
	missing := s.pingDependencies(ctx)
	p := problem.New("not_ready", "")
	var needed []string
	for i, check := range s.Health {
		answer.Dependencies[check.Name] = "ok"
		s.reportDependency(ctx, check.Name, missing[i])
		if missing[i] == nil {
			continue
		}
		answer.Dependencies[check.Name] = "does not answer" + reasonOf(missing[i])
		p.Errors = append(p.Errors, problem.Fault{Code: "dependency_failed", Detail: check.Name})
		if !check.Spare {
			needed = append(needed, check.Name+reasonOf(missing[i]))
		}
	}
	if needed == nil {
		return api.AnswerOf(answer, nil)
	}
	p.Detail = "These dependencies do not answer: " + strings.Join(needed, ", ")
	return nil, p
}

// reasonOf returns the reason of a refused connection, which names no host and no login.
func reasonOf(err error) string {
	var reasoned interface{ Reason() string }
	if !errors.As(err, &reasoned) {
		return ""
	}
	return ": " + reasoned.Reason()
}

// reportDependency logs a dependency that no longer answers, and one that answers again: probes ask every few seconds.
func (s *handlers) reportDependency(ctx context.Context, name string, err error) {
	before, _ := s.missing.Swap(name, err != nil)
	switch {
	case err != nil && before != true:
		s.Log.WarnContext(ctx, "a dependency does not answer", "dependency", name, "error", err)
	case err == nil && before == true:
		s.Log.InfoContext(ctx, "a dependency answers again", "dependency", name)
	}
}

// pingDependencies checks all dependencies concurrently and returns each result.
func (s *handlers) pingDependencies(ctx context.Context) []error {
	answers := make([]error, len(s.Health))
	var all sync.WaitGroup
	for i, check := range s.Health {
		all.Go(func() {
			may := readyTime
			if check.Spare {
				may = spareTime
			}
			ctx, cancel := context.WithTimeout(ctx, may)
			defer cancel()
			answers[i] = check.Check(ctx)
		})
	}
	all.Wait()
	return answers
}
