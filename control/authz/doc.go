// Package authz authorizes requests: by RBAC, and for nodes by the references of the pods bound to
// them.
//
// It also contains the default roles and bindings (reconciled at startup, preserving additions by
// users), the aggregation of cluster roles, and the storages of the access review APIs. The
// authorizers never deny: the server rejects a request that none of them allows. Authentication is
// in control/authn.
//
// Invariants:
//
//	Z1 An unknown role, a stale cache or a failed lookup never allows anything.
//	Z2 A node reads a Secret, ConfigMap, PersistentVolumeClaim or PersistentVolume only by
//	   name and only while a pod bound to the node refers to it.
//	Z3 A user cannot grant permissions by a role or binding without having them, except with
//	   the verbs escalate or bind.
package authz
