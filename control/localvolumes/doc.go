// Package localvolumes decides what is done for the class local: which volumes its nodes create, grow and delete. It
// replaces the sidecars external-provisioner and external-resizer. All functions are pure; package
// control/controllers executes the steps.
//
//	claim with a selected node ─► volume on the node ─► PersistentVolume ─► bound by the binder
//	larger claim               ─► volume on the node ─► PersistentVolume ─► status of the claim
//	released PersistentVolume  ─► volume deleted on the node ─► PersistentVolume deleted
//
// Invariants:
//
//	V1 A volume on a node is deleted only for a PersistentVolume that is released or deleted with the policy Delete, or if
//	   it was never mounted and neither a PersistentVolume nor a claim is left for it.
//	V2 A PersistentVolume keeps the finalizer until the volume on the node is deleted.
//	V3 A claim gets at most one volume: the names of both follow from its UID.
package localvolumes
