package check

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// cluster has the objects that the chart looks up: the number of replicas by the name of a Deployment.
type cluster map[string]int64

func (c cluster) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c, true, nil
}

func (c cluster) Namespace(string) dynamic.ResourceInterface { return c }

func (c cluster) Get(_ context.Context, name string, _ meta.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	replicas, found := c[name]
	if !found {
		return nil, errors.NewNotFound(schema.GroupResource{Resource: "deployments"}, name)
	}
	return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": replicas}}}, nil
}

func (c cluster) List(context.Context, meta.ListOptions) (*unstructured.UnstructuredList, error) {
	return &unstructured.UnstructuredList{}, nil
}

// objects renders the chart and returns the objects of one type by their names.
func objects[T any](t *testing.T, values string, at cluster) map[string]*T {
	t.Helper()
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	c := loadChart(t)
	all, err := chartutil.ToRenderValues(c, parsed, chartutil.ReleaseOptions{Name: "prod", Namespace: "metering", Revision: 2,
		IsUpgrade: true}, chartutil.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.RenderWithClientProvider(c, all, at)
	if err != nil {
		t.Fatal(err)
	}
	decoder, found := strictDecoder(t), map[string]*T{}
	for file, text := range files {
		if filepath.Ext(file) != ".yaml" {
			continue
		}
		for _, document := range documents(text) {
			object, _, err := decoder.Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if o, is := object.(any).(*T); is {
				found[any(o).(meta.Object).GetName()] = o
			}
		}
	}
	return found
}

// An autoscaler sets the number of replicas: an upgrade keeps it. No autoscaler raises a Deployment from 0, to which a migration needs it
// to be scaled: the chart does.
func TestAnUpgradeKeepsTheReplicasOfTheAutoscaler(t *testing.T) {
	const name = "prod-meterplex-service"
	for _, was := range []struct {
		found cluster
		want  int32 // 0: not given
	}{{cluster{}, 0}, {cluster{name: 7}, 7}, {cluster{name: 0}, 3}} {
		got := objects[apps.Deployment](t, "autoscaling: {enabled: true, minReplicas: 3, maxReplicas: 9}", was.found)[name].Spec.Replicas
		if was.want == 0 && got != nil || was.want != 0 && (got == nil || *got != was.want) {
			t.Errorf("of %v the upgrade makes %v replicas, want %d", was.found, got, was.want)
		}
	}
}

// The rules select instances by the name of their job.
func TestThePodMonitorsJobIsThatOfTheRules(t *testing.T) {
	rules, err := filepath.Glob("../observe/rules/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var selectors []string
	for _, file := range rules {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`job=~\\?"([^"\\]+)`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(selectors, found[1]) {
				selectors = append(selectors, found[1])
			}
		}
	}
	if len(selectors) == 0 {
		t.Fatal("no rule selects a job")
	}
	for _, m := range objects[monitoring.PodMonitor](t, "monitoring: {podMonitor: {enabled: true}}", nil) {
		job := ""
		for _, r := range m.Spec.PodMetricsEndpoints[0].RelabelConfigs {
			if r.TargetLabel == "job" {
				job = *r.Replacement
			}
		}
		for _, s := range selectors {
			if !regexp.MustCompile("^(?:" + s + ")$").MatchString(job) {
				t.Errorf("the job %q is not one of %s", job, s)
			}
		}
		return
	}
	t.Error("no PodMonitor")
}

// An empty list of sources in a NetworkPolicy means all: without a source, no rule may name the admin port.
func TestNoSourceOfMetricsIsNoAccess(t *testing.T) {
	for values, want := range map[string]bool{"networkPolicy: {metricsFrom: []}": false,
		"networkPolicy: {metricsFrom: [{name: x}]}": true} {
		for _, p := range objects[networking.NetworkPolicy](t, values, nil) {
			open := slices.ContainsFunc(p.Spec.Ingress, func(r networking.NetworkPolicyIngressRule) bool {
				return r.Ports[0].Port.StrVal == "admin"
			})
			if open != want {
				t.Errorf("%s: %+v", values, p.Spec.Ingress)
			}
		}
	}
}

// The migration runs where the pods may run: else it waits for ever on a cluster with taints or of several architectures.
func TestTheMigrationRunsWhereThePodsRun(t *testing.T) {
	const values = `{nodeSelector: {kubernetes.io/arch: amd64}, tolerations: [{key: only, operator: Exists}], priorityClassName: high, podLabels: {team: metering},
podAnnotations: {sidecar.istio.io/inject: "false"}, serviceAccount: {create: false, name: theirs}}`
	job := objects[batch.Job](t, values, nil)["prod-meterplex-migrate"].Spec.Template
	for name, d := range objects[apps.Deployment](t, values, nil) {
		pod := d.Spec.Template
		same := reflect.DeepEqual(job.Spec.NodeSelector, pod.Spec.NodeSelector) &&
			reflect.DeepEqual(job.Spec.Tolerations, pod.Spec.Tolerations) && job.Spec.PriorityClassName == pod.Spec.PriorityClassName &&
			reflect.DeepEqual(job.Annotations, pod.Annotations) && job.Labels["team"] == "metering" &&
			job.Spec.ServiceAccountName == pod.Spec.ServiceAccountName
		if !same || len(job.Spec.Tolerations) != 1 {
			t.Errorf("%s runs by %+v, its migration by %+v", name, pod.Spec, job.Spec)
		}
	}
	// The chart's own account is made only after the job of the first installation.
	if name := objects[batch.Job](t, "{}", nil)["prod-meterplex-migrate"].Spec.Template.Spec.ServiceAccountName; name != "" {
		t.Errorf("the job runs as %s, which does not exist", name)
	}
}
