// Package tokens makes and checks the bearer tokens of the control server:
// service account tokens (JWTs bound to an account and, if asked for, to a pod,
// a secret or a node) and the bootstrap tokens with which a node joins.
//
// It owns the claims' form, the TokenRequest subresource, OIDC discovery and the
// single use of bootstrap tokens. It never decides what the bearer may do
// (control/authz does) and never keeps a token itself: only what it is bound to is
// looked up, at every use, so a token dies with its pod, secret, node or account.
//
// Invariants:
//
//	K1 a token is valid only while everything that it is bound to exists with the same UID
//	K2 the algorithm of a signature is the key's own, never the token's wish
//	K3 a single-use bootstrap token makes at most one node identity
//	K4 no token and no part of a bootstrap token's secret is ever in an error or a log
package tokens
