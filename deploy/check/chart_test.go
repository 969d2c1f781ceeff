package check

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
)

var update = flag.Bool("update", false, "write the golden files of the chart")

const chartDir, testdata = "../helm/meterplex", "../helm/testdata"

func TestTheChartPassesLint(t *testing.T) {
	for _, file := range valueFiles(t) {
		result := lint.All(chartDir, read(t, file), "default", true)
		for _, m := range result.Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %s", file, m)
			}
		}
	}
}

// The manifests are those of the golden files, and decode strictly: an unknown or doubled member is an error. Rules and dashboards are
// long, and deploy/observe tests them: the golden files have their names.
func TestTheChartRenders(t *testing.T) {
	decoder := strictDecoder(t)
	for _, file := range valueFiles(t) {
		got := render(t, read(t, file))
		for _, document := range documents(got) {
			if _, _, err := decoder.Decode([]byte(document), nil, nil); err != nil {
				t.Errorf("%s: %v\n%s", file, err, document)
			}
		}
		got = withoutObserved(got)
		golden := filepath.Join(testdata, "golden", filepath.Base(file))
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || string(want) != got {
			t.Errorf("%s differs from the chart (%v): go test -run %s -update", golden, err, t.Name())
		}
	}
}

// A misspelt value, a secret among the settings, a role that does not exist and a Deployment with a name that is too long are refused.
func TestTheChartRefusesUnknownValues(t *testing.T) {
	for values, want := range map[string]string{
		"kafak: {brokers: 'kafka:9092'}":                                      "kafak",
		"kafka: {broker: 'kafka:9092'}":                                       "broker",
		"kafka: {brokers: kafka}":                                             "/kafka/brokers",
		"kafka: {saslMechanism: GSSAPI}":                                      "saslMechanism",
		"settings: {METERPLEX_STRIPE_KEY: sk_test_1}":                         "settings",
		"settings: {DATABASE_URL: 'postgres://…'}":                            "settings",
		"settings: {OTEL_EXPORTER_OTLP_HEADERS: 'api-key=k'}":                 "settings",
		"settings: {KAFKA_BROKERS: 'kafka:9092'}":                             "settings",
		"settings: {METERPLEX_LOG_FORMAT: text}":                              "settings",
		"settings: {METERPLEX_HTTP_TLS_CERT: /tls/tls.crt}":                   "settings",
		"settings: {meterplex_region: eu}":                                    "meterplex_region",
		"deployments: {api: {roles: [apis], replicas: 2}}":                    "roles",
		"deployments: {api: {roles: [], replicas: 2}}":                        "roles",
		"deployments: {api: {roles: [api], replicas: -1}}":                    "replicas",
		"deployments: {service: {connections: 0}}":                            "connections",
		"settings: {METERPLEX_DATABASE_CONNECTIONS: 20}":                      "settings",
		"deployments: {a-name-that-is-too-long: {roles: [api], replicas: 1}}": "a-name-that-is-too-long",
		"preStopSeconds: 0":                                                   "preStopSeconds",
		"ingress: {enabled: true}":                                            "ingress.host",
		"database: {secret: ''}":                                              "/database/secret",
		"monitoring: {podMonitor: {enabled: true, interval: often}}":          "interval",
	} {
		values, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := renderValues(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, which does not name %s", values, err, want)
		}
	}
}

// Each role of the service runs in a Deployment of the default values, once; no container may write its file system, run as root or gain
// rights; the grace period covers preStop and a clean stop.
func TestTheChartsPodsAreSafe(t *testing.T) {
	const cleanStop = 15 // seconds: docs/how-to/upgrade.md
	decoder := strictDecoder(t)
	for _, file := range valueFiles(t) {
		var roles []string
		for _, document := range documents(render(t, read(t, file))) {
			object, _, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var pod core.PodSpec
			switch o := object.(type) {
			case *apps.Deployment:
				pod = o.Spec.Template.Spec
				c := pod.Containers[0]
				if grace, before := *pod.TerminationGracePeriodSeconds, c.Lifecycle.PreStop.Sleep.Seconds; grace < before+cleanStop+1 {
					t.Errorf("%s: %s: a grace period of %d s for %d s of preStop and %d s of a clean stop", file, o.Name, grace, before,
						cleanStop)
				}
				if ready := c.ReadinessProbe; before(ready) > int(c.Lifecycle.PreStop.Sleep.Seconds) && *o.Spec.Replicas > 1 {
					t.Errorf("%s: %s: readiness needs %d s to fail", file, o.Name, before(ready))
				}
				roles = append(roles, strings.Split(env(c, "METERPLEX_ROLES"), ",")...)
			case *batch.Job:
				pod = o.Spec.Template.Spec
			default:
				continue
			}
			if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != 65532 || *pod.AutomountServiceAccountToken {
				t.Errorf("%s: unsafe pod: %+v", file, pod.SecurityContext)
			}
			for _, c := range pod.Containers {
				if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
					!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
					t.Errorf("%s: unsafe container: %+v", file, s)
				}
			}
		}
		slices.Sort(roles)
		if all := serviceRoles(t); !slices.Equal(roles, all) && !slices.Equal(roles, []string{"all"}) {
			t.Errorf("%s runs the roles %v instead of %v", file, roles, all)
		}
	}
}

// before returns the seconds until a probe fails.
func before(p *core.Probe) int { return int(p.PeriodSeconds * p.FailureThreshold) }

func env(c core.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// Secrets reach only the pods that need them: the operator key the API, the key of Stripe the biller.
func TestTheChartsSecretsReachTheirRolesOnly(t *testing.T) {
	decoder := strictDecoder(t)
	for _, document := range documents(render(t, read(t, filepath.Join(testdata, "values/production.yaml")))) {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		o, is := object.(*apps.Deployment)
		if !is {
			continue
		}
		c := o.Spec.Template.Spec.Containers[0]
		var secrets []string
		for _, from := range c.EnvFrom {
			secrets = append(secrets, from.SecretRef.Name)
		}
		roles := strings.Split(env(c, "METERPLEX_ROLES"), ",")
		for secret, role := range map[string]string{"operator": "api", "stripe": "biller"} {
			if slices.Contains(secrets, secret) != slices.Contains(roles, role) {
				t.Errorf("%s with the roles %v gets the secrets %v", o.Name, roles, secrets)
			}
		}
	}
}

// serviceRoles reads the roles of the service from its help, which a test of the service compares with the code.
func serviceRoles(t *testing.T) []string {
	t.Helper()
	code, err := os.ReadFile("../../cmd/meterplex/config/settings.go")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`return \[\]string\{("api", .*)\}`).FindSubmatch(code)
	if line == nil {
		t.Fatal("settings.go lists no roles")
	}
	var roles []string
	for _, role := range regexp.MustCompile(`"([a-z]+)"`).FindAllSubmatch(line[1], -1) {
		roles = append(roles, string(role[1]))
	}
	slices.Sort(roles)
	return roles
}

func valueFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(testdata + "/values/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v %v", files, err)
	}
	return files
}

func read(t *testing.T, file string) chartutil.Values {
	t.Helper()
	values, err := chartutil.ReadValuesFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// randomKey is the key that the chart draws if no Secret is given.
var randomKey = regexp.MustCompile(`METERPLEX_BOOTSTRAP_OPERATOR_KEY: [A-Za-z0-9+/=]{20,}`)

func render(t *testing.T, values chartutil.Values) string {
	t.Helper()
	files, err := renderValues(t, values)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	var all bytes.Buffer
	for _, name := range names {
		if text := strings.TrimSpace(files[name]); text != "" && filepath.Ext(name) == ".yaml" {
			fmt.Fprintf(&all, "---\n# Source: %s\n%s\n", name, strings.TrimPrefix(text, "---\n"))
		}
	}
	return randomKey.ReplaceAllString(all.String(), "METERPLEX_BOOTSTRAP_OPERATOR_KEY: cmFuZG9t")
}

func renderValues(t *testing.T, values chartutil.Values) (map[string]string, error) {
	t.Helper()
	c := loadChart(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "meterplex", Namespace: "metering", Revision: 1,
		IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(c, all, cluster(nil))
}

// observed are the manifests of rules and dashboards, with the names of their resources.
var observed = regexp.MustCompile(`(?ms)^apiVersion: \S+\nkind: (?:PrometheusRule|ConfigMap)\nmetadata:\n  name: (\S+)\n.*?(\n---\n|\z)`)

func withoutObserved(manifests string) string {
	return observed.ReplaceAllString(manifests, "# $1$2")
}

// The notes have the sum of the connections, and warn if it is more than a default server gives. The default values fit one, with the third
// pod of an upgrade.
func TestTheConnectionsFitADefaultServer(t *testing.T) {
	for file, want := range map[string][3]int{
		"": {2, 64, 96}, "default.yaml": {2, 64, 96}, "one-deployment.yaml": {1, 32, 64}, "production.yaml": {12, 260, 338},
	} {
		values := chartutil.Values{}
		if file != "" {
			values = read(t, filepath.Join(testdata, "values", file))
		}
		files, err := renderValues(t, values)
		if err != nil {
			t.Fatal(err)
		}
		notes := files["meterplex/templates/NOTES.txt"]
		sum := fmt.Sprintf("%d pods open %d at most, and %d during an upgrade", want[0], want[1], want[2])
		if !strings.Contains(notes, sum) || strings.Contains(notes, "raise it, or lower") != (want[2] > 97) {
			t.Errorf("%s: no %q in\n%s", file, sum, notes)
		}
	}
	for _, d := range objects[apps.Deployment](t, "{}", nil) {
		pods, c := int(*d.Spec.Replicas)+d.Spec.Strategy.RollingUpdate.MaxSurge.IntValue(), d.Spec.Template.Spec.Containers[0]
		if pods != 3 || env(c, "METERPLEX_DATABASE_CONNECTIONS") != "32" {
			t.Errorf("%s has %d pods during an upgrade, with %v", d.Name, pods, c.Env)
		}
	}
}

// documents splits manifests; those that are empty are left out.
func documents(text string) (list []string) {
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		if strings.TrimSpace(strings.TrimLeft(document, "\n")) != "" {
			list = append(list, document)
		}
	}
	return list
}

func strictDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubernetes.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// The chart has each file of rules and each dashboard, as it is.
func TestTheChartHasTheRulesAndDashboards(t *testing.T) {
	decoder := strictDecoder(t)
	rules, dashboards := 0, map[string]string{}
	for _, document := range documents(render(t, read(t, filepath.Join(testdata, "values/production.yaml")))) {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch o := object.(type) {
		case *monitoring.PrometheusRule:
			rules += len(o.Spec.Groups)
			for _, g := range o.Spec.Groups {
				if len(g.Rules) == 0 {
					t.Errorf("the group %s is empty", g.Name)
				}
			}
		case *core.ConfigMap:
			for name, text := range o.Data {
				dashboards[name] = text
			}
		}
	}
	files, err := filepath.Glob("../observe/rules/*.yaml")
	if err != nil || rules < len(files) || len(files) < 5 {
		t.Errorf("%d groups of %d files: %v", rules, len(files), err)
	}
	boards, err := filepath.Glob("../observe/dashboards/*.json")
	if err != nil || len(boards) < 5 || len(boards) != len(dashboards) {
		t.Errorf("%d dashboards of %d files: %v", len(dashboards), len(boards), err)
	}
	for _, file := range boards {
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != dashboards[filepath.Base(file)] {
			t.Errorf("%s differs in the chart: %v", file, err)
		}
	}
}
