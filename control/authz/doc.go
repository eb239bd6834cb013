// Package authz says who may do what: RBAC over the stored roles and bindings,
// and for nodes what their own pods give them.
//
// It owns the default roles (reconciled at start, what a user added stays), the
// aggregation of cluster roles, and the REST storages of the access reviews. It
// never denies: what nobody allows is refused by the server. It never says who
// is asking (control/authn does).
//
// Invariants:
//
//	Z1 an unknown role, a stale cache or a lookup that failed never allows anything
//	Z2 a node reads a secret, config map, claim or volume only by name and only while a pod bound to it refers to it
//	Z3 nobody grants by a role or binding what he does not hold, without the verbs escalate or bind
package authz
