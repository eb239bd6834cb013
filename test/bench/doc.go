// Command bench prints the figures that berth is measured by, each beside the
// bare calls to the container runtime, made in the same run on the same machine,
// as the limit. Runs of both kinds alternate, and medians are quoted: machines
// are noisy. A figure that misses its goal is marked, and named at the end.
//
// It starts a private containerd and an agent of its own and leaves nothing.
package main
