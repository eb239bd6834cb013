// Package admission looks at every write after it is authorized and before it is
// stored: it fills in what the cluster decides (service account, tolerations,
// priority, limits, overhead) and refuses what the cluster forbids (quota, pod
// security, another node's objects, more rights than one has).
//
// It owns one plugin per file and their order in chain.go. It never validates
// an object by itself (control/validation and podspec do), and its plugins change
// nothing but the object in hand, with two exceptions that respect dry run: the
// usage of a quota, and the claim of a single-use bootstrap token.
package admission
