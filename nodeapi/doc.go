// Package nodeapi is the node's own edge: what an operator on the node asks the
// agent, and how the agent answers.
//
// It owns two servers and one client. Serve speaks HTTP and JSON over a unix
// socket that only root and the agent's own user may use; its endpoints call a
// struct of functions, one file per endpoint, each file holding the path, the
// wire types, the server's and the client's side. ServeHealth speaks plain HTTP
// on a loopback port: /healthz, /readyz and /metrics. Client is the other end
// of the socket.
//
// It never decides anything about a pod, holds no state of one, and imports
// nothing else of berth: the wire types here are its own, and who fills them in
// is wired in cmd/berth. Paths under /api are left free for a later Kubernetes
// API on the same socket.
//
// Goroutines: Serve and ServeHealth run their server on one goroutine and wait
// for it; the HTTP server runs one per connection and ends them on the way out. A
// forwarded connection has two more, for which its request waits; Serve waits for
// such requests itself.
//
// Invariants, each checked by a test of the same name:
//
//	N1 Nobody but root and the user the agent runs as gets an answer from the
//	   socket, whatever its file mode says.
//	N2 A socket on which somebody answers is never taken from its owner; one on
//	   which nobody answers is replaced; what is no socket is never removed.
//	N3 Every error travels as a metav1.Status, so its reason survives the wire.
//	N4 Serve returns only after the requests under way have ended or their time
//	   was up; streams are told to end at once.
//	N5 A stream that was cut off is an error for its reader, never a short answer.
package nodeapi
