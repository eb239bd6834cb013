// Package ui serves the web page of the control server below /ui/: static assets, sign-in, and the API with the
// credentials of the session.
//
// A session is a cookie that only paths below /ui/ receive. It contains either a bearer token, which the API verifies
// for each request, or a user that this server has signed for. The second kind comes from a link that can be used
// once. `berth-control ui` requests the link with a client certificate. Sessions are not stored, so they survive a
// restart of the server.
//
// Requests below /ui/api/ go to the handler chain of the API in this process. They are authenticated, authorized,
// limited and audited like all others. A request that has its own credentials, such as one from kubectl proxy, keeps
// them.
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
//	5 Responses forbid content of other origins and inline scripts.
package ui
