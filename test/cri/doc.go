// Package cri tests package cri: one suite on containerd 1.6, containerd 2.x and cri/crifake, and its
// invariants on the fake.
package cri
