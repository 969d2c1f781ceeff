package feed

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/deploy/observe/ruletest"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at makes a scrape of one instance, seconds after the begin.
func at(seconds int, lines ...string) Scrape {
	return Scrape{time.Unix(int64(seconds), 0), map[string]string{"a": strings.Join(lines, "\n") + "\n"}}
}

// A fault fires its alert and no fault does not: gauges, ages, counters that grew or grow, quotients, records of SLOs and instances without an answer.
func TestFaultsFireTheirAlerts(t *testing.T) {
	tier.AtSize(t)
	const holes, objective = "# TYPE meterplex_log_holes_total counter\nmeterplex_log_holes_total ", "# TYPE meterplex_objective_requests_total counter\n"
	const letters = "# TYPE meterplex_events_dlq_total counter\n" + `meterplex_events_dlq_total{stage="PUBLISHING",topic="usage.raw"} `
	requests := func(seconds int, ok, failed string) Scrape {
		return at(seconds, objective+`meterplex_objective_requests_total{objective="ingest",result="ok"} `+ok, `meterplex_objective_requests_total{objective="ingest",result="error"} `+failed)
	}
	down := Scrape{time.Unix(9, 0), map[string]string{"a": ""}}
	age := []string{"meterplex_state_age_seconds"}
	cases := []struct {
		name  string
		fires bool
		Fault
	}{
		{"gauge", true, Fault{Alert: "MeterplexQuotaDrift", Before: []Scrape{at(0, "meterplex_quota_drift 0")}, During: []Scrape{at(1, "meterplex_quota_drift 1")}, After: []Scrape{at(2, "meterplex_quota_drift 0")}}},
		{"gauge without a fault", false, Fault{Alert: "MeterplexQuotaDrift", Before: []Scrape{at(0, "meterplex_quota_drift 0")}, During: []Scrape{at(1, "meterplex_quota_drift 0")}}},
		{"gauge before the fault", false, Fault{Alert: "MeterplexQuotaDrift", Before: []Scrape{at(0, "meterplex_quota_drift 1")}, During: []Scrape{at(1, "meterplex_quota_drift 1")}}},
		{"gauge that stays", false, Fault{Alert: "MeterplexQuotaDrift", Before: []Scrape{at(0, "meterplex_quota_drift 0")}, During: []Scrape{at(1, "meterplex_quota_drift 1")}, After: []Scrape{at(2, "meterplex_quota_drift 1")}}},
		{"age", true, Fault{Alert: "MeterplexStateNotRead", Ages: age, Before: []Scrape{at(0, "meterplex_state_age_seconds 1")}, During: []Scrape{at(1, "meterplex_state_age_seconds 1"), at(2, "meterplex_state_age_seconds 2")},
			After: []Scrape{at(3, "meterplex_state_age_seconds 0.1")}}},
		{"counter that grew", true, Fault{Alert: "MeterplexLogHole", Before: []Scrape{at(0, holes+"3")}, During: []Scrape{at(1, holes+"4")}, After: []Scrape{at(2, holes+"4")}}},
		{"counter of a new process", true, Fault{Alert: "MeterplexLogHole", Before: []Scrape{at(0, holes+"3")}, During: []Scrape{at(1, holes+"1")}, After: []Scrape{at(2, holes+"1")}}},
		{"counter that did not grow", false, Fault{Alert: "MeterplexLogHole", Before: []Scrape{at(0, holes+"3")}, During: []Scrape{at(1, holes+"3")}}},
		{"counter that grows", true, Fault{Alert: "MeterplexDeadLetters", Before: []Scrape{at(0, letters+"0")}, During: []Scrape{at(0, letters+"0"), at(30, letters+"1")}, After: []Scrape{at(40, letters+"1")}}},
		{"counter that grows slowly", false, Fault{Alert: "MeterplexDeadLetters", Before: []Scrape{at(0, letters+"0")}, During: []Scrape{at(0, letters+"0"), at(61, letters+"1")}, After: []Scrape{at(62, letters+"1")}}},
		{"instance without an answer", true, Fault{Alert: "MeterplexNoInstance", Before: []Scrape{at(0, "")}, During: []Scrape{down}, After: []Scrape{at(12, "")}}},
		{"metric that is gone", true, Fault{Alert: "MeterplexMetricAbsent", Labels: `metric="meterplex_quota_drift"`, Before: []Scrape{at(0, "meterplex_quota_drift 0")}, During: []Scrape{at(1, "")}, After: []Scrape{at(2, "meterplex_quota_drift 0")}}},
	}
	for _, alert := range []string{"MeterplexSLOBurn14_4", "MeterplexSLOBurn6", "MeterplexSLOBurn3", "MeterplexSLOBurn1"} {
		f := Fault{Alert: alert, Labels: `slo="ingest_answered"`, Before: []Scrape{requests(0, "0", "0"), requests(1, "10", "0")}, During: []Scrape{requests(1, "10", "0"), requests(2, "11", "1")}, After: []Scrape{requests(2, "11", "1"), requests(3, "20", "1")}}
		cases = append(cases, struct {
			name  string
			fires bool
			Fault
		}{alert, true, f})
	}
	tool, err := ruletest.Build("../tools", download.CacheDir())
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	var names []string
	for _, c := range cases {
		name := strings.ReplaceAll(c.name, " ", "-")
		rules, test, err := c.Test(name + "-rules.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{name + "-rules.yaml": rules, name + ".yaml": test} {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		names = append(names, name+".yaml")
	}
	outcomes, err := tool.Test(folder, names)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		if failure := outcomes[names[i]]; (failure == "") != c.fires {
			t.Errorf("%s: %.2000s", c.name, failure)
		}
	}
	still := cases[4].Fault
	still.During = []Scrape{at(1, "meterplex_state_age_seconds 1"), at(2, "meterplex_state_age_seconds 1")}
	if _, _, err := still.Test("x"); err == nil {
		t.Error("an age that does not grow is accepted")
	}
}

// A selector may name labels and the instance.
func TestMetricSelectsLabelsAndInstances(t *testing.T) {
	s := Scrape{Instances: map[string]string{"a": "age 1\nlag{projection=\"x\"} 2\nlag{projection=\"y\"} 3\n", "b": "age 4\nlag{projection=\"x\"} 5\n"}}
	for selector, want := range map[string][]float64{
		`age`: {1, 4}, `age{instance="b"}`: {4}, `age{instance="c"}`: nil,
		`lag{projection="x"}`: {2, 5}, `lag{projection="x",instance="a"}`: {2}, `lag{instance="a"}`: {2, 3},
	} {
		if got := slices.Sorted(maps.Values(s.Metric(selector))); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", selector, got, want)
		}
	}
}
