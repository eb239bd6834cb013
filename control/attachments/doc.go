// Package attachments decides on which nodes the volumes of CSI drivers are attached. It is pure: it maps the objects
// that concern one PersistentVolume, or one node, to the next writes, and performs no actions. Names, rules and events
// are those of the attach and detach controller of kube-controller-manager. A driver attaches a volume because there is
// a VolumeAttachment, and detaches it when the VolumeAttachment is deleted.
//
// The agent of a node and the controller coordinate by the status of the Node. The agent mounts a volume if
// volumesAttached has it after the agent has added it to volumesInUse. The controller takes a volume out of
// volumesAttached with the resource version of a Node whose volumesInUse does not have it, and deletes the
// VolumeAttachment after that. With it:
//
//	A1 A volume that permits one node has a new VolumeAttachment only if it has no other one.
//	A2 A VolumeAttachment is not deleted while a pod on its node uses the volume.
//	A3 A VolumeAttachment is not deleted while its node has the volume in volumesAttached. The volume is not taken out
//	   of volumesAttached while volumesInUse has it, unless the node is out of service, or has not been ready for
//	   MaxWaitForUnmount.
//	A4 When nothing is left to do, every pod on a node has its volumes attached, or another node has an exclusive one.
//	A5 When nothing is left to do, no volume is attached to a node that neither has a pod for it nor uses it.
package attachments
