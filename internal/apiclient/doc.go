// Package apiclient is the lean client of a Kubernetes API server: the types
// that the agent uses and no others, protobuf on the wire, single objects and
// lists followed by reflectors.
//
// It owns connections, the kubeconfig and the certificates that the agent asks
// for. It decides nothing about pods or nodes, keeps no copy of what it reads
// but for a list that is being read, and never logs a token or a key.
//
// A Client may be used by any goroutine. Twin makes one with a connection of its
// own: what must never queue behind something else.
//
// Goroutines: Follow and Certificate.Run run on their caller's; a reflector has
// its own while it reads and ends with Follow.
package apiclient
