// Package server is the kubelet HTTP API of the node, by default on port 10250. Its clients are the
// API server, kubectl through the API server, and metrics collectors.
//
// It contains the TLS server, authentication, authorization and one file per endpoint. The data of
// the responses come from Handlers, a struct of functions. Token reviews and subject access reviews
// go through Reviews. cmd/berth connects both. Stats are collected only on request, so an unused
// server costs no more than a listening socket.
//
// The package makes no decision about pods and knows nothing of the runtime except the URLs of its
// streaming server.
//
// Goroutines: Serve runs its server on one goroutine and waits for it. The HTTP server has one
// goroutine per connection. A stream has some more, for which its request waits. Serve waits for
// such requests itself.
//
// Invariants, each checked by a test:
//
//	K1 Every request must be authenticated.
//	K2 Every route has the permissions that it requires. Exec, attach and port forwarding
//	   require the verb create, regardless of the method of the request.
//	K3 No response contains a file outside the directory of the host's logs, regardless
//	   of the path of the request and of links in that directory.
//	K4 A forwarded connection that fails does not affect other connections.
//	K5 An idle stream ends after its timeout, and every stream ends with the server.
package server
