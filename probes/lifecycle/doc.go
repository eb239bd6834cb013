// Package lifecycle runs the lifecycle hooks of containers: exec in the container,
// httpGet from the node, sleep.
//
// It owns nothing and decides nothing: when a hook runs, what follows from its
// end and whether it runs again is decided in package agent/plan. A hook has no
// time limit; the caller's context calls it off, and an exec is then killed by
// the runtime. As in Kubernetes, any answer to an httpGet counts as success,
// whatever its status code, and tcpSocket can be written down but never works.
package lifecycle
