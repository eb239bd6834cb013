// Command bench prints performance figures of berth. It compares them with a baseline of plain CRI calls or, with
// -peers, of components of Kubernetes, that it measures in the same run on the same machine. Runs of both kinds
// alternate, and the figures are medians, because machines are noisy. A figure that misses its goal is marked and
// listed at the end.
//
// It starts a private containerd and an agent and leaves nothing behind.
package main
