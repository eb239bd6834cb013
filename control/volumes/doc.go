// Package volumes decides how PersistentVolumeClaims are bound to PersistentVolumes. It is pure: it maps objects to
// the next write and the events that belong to it, and performs no actions. The rules, phases, annotations and events
// are those of kube-controller-manager, and the rules by which a volume matches a claim come from
// k8s.io/component-helpers.
//
// NextForClaim and NextForVolume return one write at a time. The caller executes it and asks again with the written
// object, until there is none. A crash between two writes is therefore nothing special. The steps of a binding are, in
// this order: the reference of the volume to the claim, the phase of the volume, the name of the volume in the claim,
// the status of the claim. MatchNode decides what a node can provide to a pod whose claims wait for it.
//
// Writes are conditional on the resource version of the object that the decision has read. With that:
//
//	B1 A volume is bound to at most one claim, and two claims are never bound to one volume.
//	B2 When nothing is left to do, a claim is bound if and only if its volume is bound to it.
//	B3 A volume that was bound to a claim is never bound to another one before its claimRef is removed by a user.
//	B4 No volume is deleted. A volume with the reclaim policy Delete is deleted by the provisioner that created it.
//	B5 A claim that waits for its first consumer is bound to a volume only by the scheduler, or if the volume is
//	   reserved for it.
//	B6 A claim for which there is a matching available volume does not stay pending.
package volumes
