// Package reviews implements the REST storage of review APIs: a create returns the object with its
// status filled in, and nothing is stored.
//
// The evaluation of reviews is in control/authn (identities) and control/authz (permissions).
package reviews
