// Package local is the CSI driver local.berth.dev, which is part of the agent. A volume is an ext4 file system in an
// image file on the node. The file is preallocated, so that the volume has its size for certain, and a pod that
// fills it takes no space from others.
//
//	PUT /localvolumes/NAME     create (image: fallocate ─► mkfs.ext4 ─► rename) or grow
//	NodeStageVolume            loop device ─► mount at the staging target
//	NodePublishVolume          bind mount
//	DELETE /localvolumes/NAME  remove the image, unless it is in use
//
// The control server creates, grows and deletes volumes by the node's HTTP API: package control/controllers. Package
// volumes/csi calls the node service as that of any other driver.
//
// What exists is read from the host:
//
//	<dir>/<name>/image      the file system; it has this name when it is complete
//	<dir>/<name>/used       the volume has been staged, so it may have data
//	/sys/block/loop*        loop devices, which the kernel detaches at the last unmount
//
// Invariants:
//
//	L1 A missing image of a volume that exists is an error, never a new, empty volume: neither staging nor growing creates
//	   one.
//	L2 An image is not removed while it is attached to a loop device.
//	L3 A crash at any point leaves a complete image, or a directory that the next PUT or DELETE cleans up.
//	L4 All space of an image is allocated before the volume is reported as created or grown, and again before it is
//	   mounted.
package local
