package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/local/localtest/kafkatest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// service is the service as it is built from this source, once for all tests; TestMain removes its folder.
var service = sync.OnceValues(func() (string, error) {
	var err error
	if serviceFolder, err = os.MkdirTemp("", "meterplex-bench-test-*"); err != nil {
		return "", err
	}
	binary := filepath.Join(serviceFolder, "meterplex")
	build := exec.Command("go", "build", "-ldflags=-s", "-o", binary, "./cmd/meterplex")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
})

var serviceFolder string

// newRun is a run on the test's servers.
func newRun(t *testing.T, sizes times) *run {
	t.Helper()
	binary, err := service()
	must.OK(t, err)
	cfg := Config{Now: time.Now, Log: io.Discard, Command: "bench", Serve: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, binary, "serve") }}
	r := &run{cfg: cfg, times: sizes, report: newReport(&cfg, time.Now()), maxRates: map[string]float64{}}
	database, broker := localtest.Postgres(t).Postgres, kafkatest.Broker(t)
	r.servers = &servers{cfg: &r.cfg, database: database, broker: broker, meter: &meter{postgres: database.PID(), kafka: broker.PID()}}
	return r
}

func (r *run) figure(t *testing.T, id string) *Figure {
	t.Helper()
	for i := range r.report.Figures {
		if r.report.Figures[i].ID == id {
			return &r.report.Figures[i]
		}
	}
	t.Fatalf("%s was not measured: %+v", id, r.report.Figures)
	return nil
}

// B8: a rebuild beside reads, and one by workers that do not rest, in a service that was restarted.
func TestRebuildsAreMeasuredWithRestsAndWithout(t *testing.T) {
	tier.AtSize(t)
	r := newRun(t, times{history: 32_000, latency: 2 * time.Second})
	var shares []string
	err := r.withService(t.Context(), 1, tenantSpec{feature: feature, tenants: tenantCount, spread: true}, func(s *subject) error {
		err := r.rebuild(t.Context(), s)
		for _, p := range s.instances {
			for _, v := range p.cmd.Env {
				if share, found := strings.CutPrefix(v, "METERPLEX_REBUILD_SHARE="); found {
					shares = append(shares, share)
				}
			}
		}
		return err
	})
	if err != nil || len(shares) != 1 || shares[0] != "100" {
		t.Fatalf("the last service ran with the shares %q, %v", shares, err)
	}
	for _, id := range []string{"B8", "B8/100"} {
		if f := r.figure(t, id); f.Value == 0 || f.Limit == 0 || f.Ratio != f.Value/f.Limit || f.CPU.Events != 32_000 || len(f.Aims) == 0 {
			t.Errorf("%s: %+v", id, f)
		}
	}
	if f := r.figure(t, "B8"); f.Latency == nil || f.LimitLatency == nil || f.Latency.Count == 0 || len(f.Aims) != 2 {
		t.Errorf("B8: %+v", f)
	}
}

func TestRebuildAimsNeedRateAndUndisturbedReads(t *testing.T) {
	for _, x := range []struct {
		ratio, p99 float64
		want       []bool
	}{{0.30, 1.5, []bool{true, true}}, {0.29, 1.5, []bool{false, true}}, {0.9, 1.51, []bool{true, false}}} {
		f := figureB8(1000)
		f.Ratio, f.Latency, f.LimitLatency = x.ratio, &Latency{P99: x.p99}, &Latency{P99: 1}
		f.judge()
		if f.Aims[0].Met != x.want[0] || f.Aims[1].Met != x.want[1] {
			t.Errorf("%+v: %+v", x, f.Aims)
		}
	}
	for ratio, want := range map[float64]bool{0.8: true, 0.79: false} {
		f := figureB8Alone()
		f.Ratio = ratio
		if f.judge(); f.Aims[0].Met != want {
			t.Errorf("%v of the limit: %+v", ratio, f.Aims)
		}
	}
}
