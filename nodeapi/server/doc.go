// Package server is the node's API as the kubelet serves it on port 10250: what
// a control server, kubectl through it, and those who collect figures ask a node.
//
// It owns the TLS server, who may ask it what, and one file per endpoint. What
// the answers are made from comes through Handlers, a struct of functions; whom a
// token belongs to and what a user may do comes through Reviews, two functions.
// Both are wired in cmd/berth. Figures are read when somebody asks for them and
// never in between: a server that nobody asks costs a listening socket.
//
// It never decides anything about a pod and knows nothing of the runtime but the
// URLs of its streaming server.
//
// Goroutines: Serve runs its server on one goroutine and waits for it. The HTTP
// server has one per connection. A stream has a few more, for which its request
// waits; Serve waits for such requests itself.
//
// Invariants, each checked by a test of the same name:
//
//	K1 Nobody gets an answer without having shown who they are, whatever they ask.
//	K2 Every route names what its caller must be allowed to do; a command, an
//	   attachment or a forwarded port takes the right to create, whatever the
//	   method of its request.
//	K3 No answer comes from outside the folder of the host's logs, whatever the
//	   path and the links below it say.
//	K4 One forwarded connection that fails takes no other with it.
//	K5 A stream on which nothing moves ends when its time is up, and every stream
//	   ends with the server.
package server
