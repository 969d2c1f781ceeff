package http

import (
	"context"
	"encoding/json"
	nethttp "net/http"
	"strings"
	"time"

	"github.com/meterplex/meterplex/projections"
)

func (s *service) systemOperations(t *site) {
	serve(t, operation{method: nethttp.MethodGet, path: prefix + "/system/identity", id: "getIdentity", tag: "System",
		summary: "Where every accepted event is", description: "accepted = aggregated + rejected + inFlight + parked, in one snapshot; total and partitions have inFlight as undecided + unapplied."}, s.identity)
	s.healthOperations(t)
	t.servePlain("/openapi.json", t.document("application/json", func() ([]byte, error) { return json.Marshal(t.api.OpenAPI()) }))
	t.servePlain("/openapi.yaml", t.document("application/yaml", t.api.OpenAPI().YAML))
	t.servePlain("/docs", newReference())
}

func (s *service) healthOperations(t *site) {
	serve(t, operation{method: nethttp.MethodGet, path: "/livez", id: "live", tag: "System", summary: "Is the process alive?"}, s.live)
	serve(t, operation{method: nethttp.MethodGet, path: "/readyz", id: "ready", tag: "System", summary: "Can the process serve?",
		description: "Asks each dependency. 503 names those that do not answer."}, s.ready)
	if s.Metrics == nil {
		t.servePlain("/metrics", nethttp.NotFoundHandler())
	} else {
		t.servePlain("/metrics", s.Metrics)
	}
}

type identityAnswer struct{ Body projections.Identity }

func (s *service) identity(ctx context.Context, _ *struct{}) (*identityAnswer, error) {
	found, err := s.Reads.Identity(ctx)
	return &identityAnswer{found}, err
}

type healthAnswer struct{ Body health }

type health struct {
	Status       string            `json:"status" enum:"live,ready"`
	Version      string            `json:"version"`
	Dependencies map[string]string `json:"dependencies,omitempty" doc:"Each dependency by name."`
}

func (s *service) live(context.Context, *struct{}) (*healthAnswer, error) {
	return &healthAnswer{health{Status: "live", Version: s.Version}}, nil
}

// readyTime is how long a dependency may take to say that it is there.
const readyTime = 3 * time.Second

func (s *service) ready(ctx context.Context, _ *struct{}) (*healthAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	answer := health{Status: "ready", Version: s.Version, Dependencies: map[string]string{}}
	var failed []string
	for _, check := range s.Health {
		answer.Dependencies[check.Name] = "ok"
		if err := check.Check(ctx); err != nil {
			failed = append(failed, check.Name)
			s.log.WarnContext(ctx, "a dependency does not answer", "dependency", check.Name, "error", err)
		}
	}
	if len(failed) == 0 {
		return &healthAnswer{answer}, nil
	}
	p := newProblem("not_ready", "These dependencies do not answer: "+strings.Join(failed, ", "))
	for _, name := range failed {
		p.Errors = append(p.Errors, Fault{Code: "dependency_failed", Detail: name})
	}
	return nil, p
}
