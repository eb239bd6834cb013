// Package ui serves the web page of the control server below /ui/: static assets, sign-in, and the API with the
// credentials of the session.
//
// A session is an encrypted cookie that only paths below /ui/ use. It contains either a bearer token, which the API
// verifies for each request, or a user. The second kind comes from a link that can be used once. `berth-control ui`
// requests the link with a client certificate. Sessions are not stored, so they survive a restart of the server.
//
// Browsers send cookies to all ports of a host, so the cookie alone is not sufficient. It contains the hash of a random
// secret, which the page receives at the sign-in and sends as the value of the header X-Berth-UI.
//
// Requests below /ui/api/ go to the handler chain of the API in this process. They are authenticated, authorized,
// limited and audited like all others. A request that has its own credentials, such as one from kubectl proxy, keeps
// them and needs no secret. Upgrades of connections and the subresources exec, attach, portforward and proxy are
// rejected.
//
// Goroutines: none.
//
// Invariants, each checked by a test:
//
//	1 A cookie has no effect outside /ui/.
//	2 A request that uses a cookie, or creates or ends a session, has the header X-Berth-UI, which other origins
//	  cannot send.
//	3 A session never outlives the credentials that it was created with.
//	4 A link creates at most one session.
//	5 A cookie has no effect without its secret.
//	6 Responses forbid content of other origins and inline scripts.
package ui
