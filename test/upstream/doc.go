// Package upstream builds the components of Kubernetes, with which tests and benchmarks compare berth.
package upstream
