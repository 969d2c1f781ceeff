// Package check tests the files in deploy: the Helm chart, the Compose file, the systemd unit and the image. It is a module of its own,
// so that the service does not depend on Helm and Kubernetes. It has no code but tests, and needs neither network nor cluster.
package check
