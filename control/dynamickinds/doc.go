// Package dynamickinds keeps a set of kinds that come and go while the server runs: those of custom resources and of
// extension API servers. It watches their objects while a controller follows the set.
package dynamickinds
