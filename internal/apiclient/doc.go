// Package apiclient is a lean client of a Kubernetes API server: only the types that the agent
// uses, protobuf on the wire, single objects, and lists watched by reflectors.
//
// It owns connections, the kubeconfig and the certificates that the agent requests. It does not
// decide anything about pods or nodes, does not cache objects except for a list in progress, and
// never logs a token or a key.
//
// A Client is safe for concurrent use. Unthrottled returns a client with its own connection, for
// requests that must never queue behind others.
//
// Goroutines: Watch and Certificate.Run run on the caller's goroutine. A reflector starts its own
// goroutines, which end with Watch.
package apiclient
