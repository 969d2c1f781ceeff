// Package scheme takes the place of a package that knows the kinds of all versions of Kubernetes: it knows those that a chart may use here.
// Others fail in the strict decoder of the checks.
package scheme

import (
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var (
	builder = runtime.NewSchemeBuilder(apps.AddToScheme, autoscaling.AddToScheme, batch.AddToScheme, core.AddToScheme,
		networking.AddToScheme, policy.AddToScheme)
	// AddToScheme adds the kinds to a scheme.
	AddToScheme = builder.AddToScheme
	// Scheme has the kinds.
	Scheme = made()
)

func made() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		panic(err)
	}
	return s
}
