// Package authn says who is asking: by client certificate, service account
// token or bootstrap token, in this order; nobody else is anybody, but for the
// health checks, which ask no name.
//
// It owns the order of the authenticators and the two REST storages that answer
// with it: tokenreviews and selfsubjectreviews. It never says what one may do.
package authn
