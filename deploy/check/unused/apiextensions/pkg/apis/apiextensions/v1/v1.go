// Package v1 takes the place of a package that Helm needs for charts with definitions of resources.
package v1

import "k8s.io/apimachinery/pkg/runtime"

// AddToScheme adds no kind.
func AddToScheme(*runtime.Scheme) error { return nil }
