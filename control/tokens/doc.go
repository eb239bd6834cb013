// Package tokens issues and verifies the bearer tokens of the control server: service account
// tokens (JWTs bound to a service account and optionally to a pod, secret or node) and the
// bootstrap tokens with which nodes join.
//
// It defines the claims and contains the TokenRequest subresource, OIDC discovery, and the single
// use of bootstrap tokens. Permissions are in control/authz. Issued tokens are not stored. The
// objects that a token is bound to are looked up at each use, so a token becomes invalid when one
// of them is deleted.
//
// Invariants:
//
//	K1 A token is valid only while all objects that it is bound to exist with the same UID.
//	K2 The signature algorithm is determined by the key, never by the token.
//	K3 A single-use bootstrap token creates at most one node identity.
//	K4 Errors and logs never contain a token or a part of a bootstrap token's secret.
package tokens
