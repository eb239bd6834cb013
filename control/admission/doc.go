// Package admission implements the admission plugins of the control server. They run after
// authorization and before storage. They set defaults (service account, tolerations, priority,
// limits, overhead) and reject what the cluster forbids (exceeded quotas, Pod Security violations,
// writes to the objects of other nodes, privilege escalation).
//
// The package contains one plugin per file and the chain in chain.go. The plugins of webhooks and
// admission policies (webhooks.go) are those of k8s.io/apiserver. Each is created when it has a
// configuration (ondemand.go). General validation of objects is in control/validation and podspec.
// The plugins change only the admitted object, with two exceptions, which respect dry run: the usage
// of a quota and the claim of a single-use bootstrap token.
package admission
