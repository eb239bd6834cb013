// Package pods is what the control server does with pods beyond keeping them:
// the rules of their life (rules.go), each way of changing one part of a pod
// (status, binding, ephemeral containers, resize), eviction within disruption
// budgets, and the connections that are made to the node that runs a pod (log,
// exec, attach, port-forward) or to what it serves (proxy).
//
// What is in a pod is judged by podspec, which the node agent shares. This
// package never starts, stops or places a pod: it writes down what others have
// decided, and passes bytes on.
//
//	     create            bind             the node's status
//	──────────────► Pending ────► Pending, on a node ──────► Running … Succeeded, Failed
//	                   │                    │                    │             │
//	                 delete               delete               delete        delete
//	                   ▼                    ▼                    ▼             ▼
//	                 gone        marked with its grace; the node deletes     gone
//	                             it with grace 0 when nothing is left
package pods
