package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// The service is measured beside a broker that it reaches over TLS only, with the settings that were chosen.
func TestTheServiceIsMeasuredOverTLSWithSettings(t *testing.T) {
	tier.AtSize(t)
	r := newRun(t, times{idle: time.Second})
	r.cfg.KafkaTLS, r.cfg.Settings = true, []string{"METERPLEX_TRACE_RATIO=0.01"}
	broker, login, err := startBroker(t.Context(), &r.cfg, t.TempDir())
	must.OK(t, err)
	t.Cleanup(func() {
		if err := broker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.servers.broker, r.servers.login = broker, login
	err = r.withService(t.Context(), 1, tenantSpec{feature: feature, tenants: tenantCount, spread: true}, func(s *subject) error {
		env := s.instances[0].cmd.Env
		for _, want := range append(slices.Clone(r.cfg.Settings), "KAFKA_BROKERS="+broker.SecuredBrokers()[0], "KAFKA_SASL_MECHANISM=SCRAM-SHA-512") {
			last := ""
			for _, v := range env {
				if name, _, _ := strings.Cut(want, "="); strings.HasPrefix(v, name+"=") {
					last = v
				}
			}
			if last != want {
				t.Errorf("the service has the setting %q instead of %q", last, want)
			}
		}
		return r.idle(t.Context(), s)
	})
	must.OK(t, err)
	r.figure(t, "idle") // its value may be 0: a second without requests may cost less than a tick of the CPU clock
}
