// Package authn authenticates requests by client certificate, service account token or bootstrap
// token, in this order. Anonymous requests are allowed for the health checks and the version only.
//
// It also serves tokenreviews and selfsubjectreviews. Permissions are decided in control/authz.
package authn
