// Package nodeapi is the local API of the agent, served on a Unix socket to the commands on the node.
//
// It contains two servers and one client. Serve serves HTTP and JSON on a Unix socket that only
// root and the agent's own user can use. Its endpoints call a struct of functions. Each endpoint has
// one file with its path, wire types, server side and client side. ServeHealth serves plain HTTP on
// a loopback port: /healthz, /readyz and /metrics. Client is the client of the socket.
//
// The package makes no decision about a pod, holds no pod state, and imports no other package of
// berth. It defines its own wire types, and cmd/berth connects the functions that fill them in.
// Paths under /api are reserved for a Kubernetes API on the same socket.
//
// Goroutines: Serve and ServeHealth run their server on one goroutine and wait for it. The HTTP
// server has one goroutine per connection and stops them on shutdown. A forwarded connection has two
// more, for which its request waits. Serve waits for such requests itself.
//
// Invariants, each checked by a test of the same name:
//
//	N1 Only root and the user that the agent runs as get a response from the socket,
//	   regardless of its file mode.
//	N2 A socket with an active listener is never replaced. A stale socket is replaced.
//	   A file that is not a socket is never removed.
//	N3 Every error is sent as a metav1.Status, so that its reason is preserved.
//	N4 Serve returns only after the active requests have finished or their grace period
//	   is over. Streams are stopped at once.
//	N5 A truncated stream is an error for its reader, never a short response.
package nodeapi
