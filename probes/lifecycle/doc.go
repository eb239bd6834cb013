// Package lifecycle runs the lifecycle hooks of containers: exec in the container, httpGet from the
// node, and sleep.
//
// It has no state and makes no decisions: agent/plan decides when a hook runs, what its result
// means, and whether it is repeated. A hook has no timeout of its own. The caller cancels its
// context, and the runtime then kills the command. As in Kubernetes, every HTTP response counts as
// success, whatever its status code, and tcpSocket can be specified but always fails.
package lifecycle
