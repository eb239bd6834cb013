// Package authn authenticates requests by the headers of a front proxy, client certificate, service account token,
// bootstrap token, JWT of another issuer or webhook, in this order. Requests without credentials are anonymous.
//
// It also serves tokenreviews and selfsubjectreviews. Permissions are decided in control/authz.
package authn
