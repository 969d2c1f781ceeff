package observe

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// burns tests the alerts on burn rates by their records. recordCases tests the records.
func burns() (all []ruleCase) {
	for _, b := range []struct {
		alert, severity, long, short string
		rate                         float64
	}{
		{"MeterplexSLOBurn14_4", "page", "1h", "5m", 14.4}, {"MeterplexSLOBurn6", "page", "6h", "30m", 6},
		{"MeterplexSLOBurn3", "ticket", "1d", "2h", 3}, {"MeterplexSLOBurn1", "ticket", "3d", "6h", 1},
	} {
		long, short, requests := "meterplex:slo_burn:rate"+b.long, "meterplex:slo_burn:rate"+b.short,
			"meterplex:slo_requests:increase"+b.long
		// One after the other is just not above its bound, for ten steps each; another SLO has enough requests, and is not burned.
		burned := func(quiet int) string {
			return fmt.Sprintf("%[1]vx%[2]d %[3]vx9 %[1]vx40", b.rate*1.01, quiet-1, b.rate)
		}
		s := scenario{series: []string{long + `{` + job + `,slo="readable"} ` + burned(10),
			short + `{` + job + `,slo="readable"} ` + burned(30),
			requests + `{` + job + `,slo="readable"} 1000x49 999x9 1000x40`, requests + `{` + job + `,slo="check_latency"} 1000x100`,
			long + `{` + job + `,slo="check_latency"} 0x100`}}
		on := []string{`slo="readable"`}
		s.checks = []check{{9, on}, {10, nil}, {19, nil}, {20, on}, {30, nil}, {39, nil}, {40, on}, {50, nil}, {59, nil}, {60, on}}
		c := ruleCase{b.alert, b.severity, 1, []scenario{s}}
		all = append(all, c)
	}
	return all
}

// recordCase is a test of a record: its value at the end of a history.
type recordCase struct {
	Record
	series []string
	step   int // seconds
	want   float64
}

// stretches are the requests, and those that fail, in each step of a window of ten steps: the windows before it, and its halves, differ.
func stretches() [][3]float64 { // steps, requests, failing
	return [][3]float64{{10, 1000, 500}, {10, 300, 90}, {5, 100, 10}, {5, 200, 60}}
}

// values renders a counter that grows by a member of the stretches, or a function of them.
func values(of func(requests, failing float64) float64) string {
	var b strings.Builder
	sum := 0.0
	for _, s := range stretches() {
		fmt.Fprintf(&b, "%v+%vx%v ", sum, of(s[1], s[2]), s[0]-1)
		sum += of(s[1], s[2]) * s[0]
	}
	fmt.Fprintf(&b, "%v", sum)
	return b.String()
}

// inWindow is the growth in the samples of the last ten steps: the window excludes its begin.
func inWindow(of func(requests, failing float64) float64) (sum float64) {
	last, half := stretches()[3], stretches()[2]
	return 5*of(last[1], last[2]) + 4*of(half[1], half[2])
}

func recordCases() (all []recordCase) {
	requests := func(r, _ float64) float64 { return r }
	failing := func(_, f float64) float64 { return f }
	good := func(r, f float64) float64 { return r - f }
	seconds := map[string]int{"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200, "30d": 2592000}
	budgets := map[string]float64{"ingest_answered": 0.0005, "ingest_latency": 0.01, "readable": 0.001, "check_answered": 0.0001,
		"check_latency": 0.001}
	series := map[string][]string{}
	for _, o := range []string{"ingest", "check"} {
		for _, other := range []string{"ingest", "check"} {
			name := `meterplex_objective_requests_total{` + job + `,instance="a",objective="` + other + `",result=`
			if o == other {
				series[o+"_answered"] = append(series[o+"_answered"], name+`"ok"} `+values(good), name+`"error"} `+values(failing))
			} else { // a decoy
				series[o+"_answered"] = append(series[o+"_answered"], name+`"ok"} 0+7x100`, name+`"error"} 0+3x100`)
			}
		}
	}
	latency := func(slo, metric, labels, bound, wider string) {
		series[slo] = []string{with(metric+"_count{"+labels) + " " + values(requests), with(metric+"_bucket{"+labels+`,le="`+bound+`"`) +
			" " + values(good), with(metric+"_bucket{"+labels+`,le="`+wider+`"`) + " 0+9x100"}
	}
	latency("ingest_latency", "meterplex_ingest_duration_seconds", `instance="a"`, "0.05", "0.064")
	latency("check_latency", "meterplex_check_duration_seconds", `instance="a"`, "0.004", "0.008")
	latency("readable", "meterplex_end_to_end_seconds", `consumer="meterplex-usage-aggregator"`, "2.0", "2.048")
	series["readable"] = append(series["readable"], with(`meterplex_end_to_end_seconds_count{consumer="meterplex-usage-validator"}`)+
		" 0+7x100", with(`meterplex_end_to_end_seconds_bucket{consumer="meterplex-usage-validator",le="2.0"}`)+" 0+3x100")
	for _, r := range Records() {
		c := recordCase{Record: r, series: series[r.SLO]}
		if window, isBurn := strings.CutPrefix(r.Name, "meterplex:slo_burn:rate"); isBurn {
			c.step, c.want = seconds[window]/10, inWindow(failing)/inWindow(requests)/budgets[r.SLO]
		} else {
			window = strings.TrimPrefix(r.Name, "meterplex:slo_requests:increase")
			c.step, c.want = seconds[window]/10, inWindow(requests)*10/9 // extrapolated to the begin of the window
		}
		all = append(all, c)
		if r.SLO == "readable" { // before Prometheus 3 the bound has another form
			c.series = slices.Clone(c.series)
			for i, line := range c.series {
				c.series[i] = strings.Replace(line, `le="2.0"`, `le="2"`, 1)
			}
			all = append(all, c)
		}
	}
	return all
}

// yaml renders the case as a test in the format of promtool.
func (c *recordCase) yaml(rules string) string {
	end := 30 * c.step
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: %ds\ntests:\n- interval: %ds\n  input_series:\n", rules, end, c.step)
	for _, line := range c.series {
		name, values, _ := strings.Cut(line, "} ")
		fmt.Fprintf(&b, "  - series: %s\n    values: %s\n", quote(name+"}"), quote(values))
	}
	b.WriteString("  promql_expr_test:\n")
	// Three decimals, as an integer: the last bits of a sum depend on the order of its terms.
	fmt.Fprintf(&b, "  - expr: round(1000 * %s)\n    eval_time: %ds\n    exp_samples:\n    - labels: %s\n      value: %v\n",
		c.Name, end, quote(`{`+job+`,slo="`+c.SLO+`"}`), math.Round(1000*c.want))
	return b.String()
}
