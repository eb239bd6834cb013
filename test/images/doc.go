// Package images makes the container images that berth's tests and its demo
// run, on a machine that can reach no registry, and serves them from a registry
// on loopback where a real pull is wanted.
//
// It owns the recipes (what is in each image) and a cache folder of OCI
// archives. It never talks to a runtime: the user of one imports an Archive
// with
//
//	ctr -n k8s.io images import PATH
//
// or points it at a Registry with Registry.HostsToml.
//
// Invariants:
//
//  1. The same inputs give the same bytes: no clock, host name or file order
//     gets into an image, so a digest may be compared between runs.
//  2. An archive appears under its name complete or not at all, and its name
//     carries a hash of the recipe and of the local files it was made from.
//     Several processes may share one cache folder.
//  3. An archive holds exactly one image under exactly one name.
//  4. Nothing is installed on the machine: Debian packages are downloaded and
//     unpacked below the cache folder only.
package images
