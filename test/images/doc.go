// Package images builds the container images of berth's tests and demo without access to a registry, and
// serves them from a registry on loopback for tests that pull.
//
// It owns the recipes, which define the content of each image, and a cache directory of OCI archives. It
// never calls a runtime: its user imports an Archive with
//
//	ctr -n k8s.io images import PATH
//
// or configures containerd for a Registry with Registry.HostsToml.
//
// Invariants:
//
//  1. The same inputs produce the same bytes: no clock, host name or file order gets into an image. Digests
//     can be compared between runs.
//  2. An archive is written atomically, and its name contains a hash of the recipe and of the local files
//     that it is built from. Several processes can share a cache directory.
//  3. An archive contains exactly one image with exactly one name.
//  4. Nothing is installed on the machine: Debian packages are only unpacked below the cache directory.
package images
