// Package csi sets up volumes by CSI drivers.
//
// Manager is the handler of plugins of type CSIPlugin: it calls NodeGetInfo, keeps the CSINode and the
// Node up to date, and stages and publishes the volumes of pods. Package volumes calls SetUp and
// TearDown for one volume of one pod, from the goroutine of an action that may take long and is
// repeated with back-off by package agent/plan.
//
//	SetUp:    CSIDriver ─► attachment ─► NodeStageVolume ─► NodePublishVolume ─► NodeExpandVolume
//	TearDown: NodeUnpublishVolume
//	Run:      NodeUnstageVolume of volumes that no pod uses, the CSINode, the Node, and NodePublishVolume
//	          again for drivers with requiresRepublish, and NodeExpandVolume for claims that have grown
//
// What exists is read from the host, in the layout of the kubelet, so that a restart of the agent, a
// crash at any point and a hand-over from or to the kubelet need no other state:
//
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/vol_data.json   staging may have started
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/globalmount     staging target
//	<root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/.berth          used by a pod of berth
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json               publishing may have started
//	<root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount                       publish target
//
// A raw block volume has one vol_data.json for all pods, and the mount point of a pod's device stands for its
// publication. NAME is the name of the PersistentVolume:
//
//	<root>/plugins/kubernetes.io/csi/volumeDevices/NAME/data/vol_data.json   staging or publishing may have started
//	<root>/plugins/kubernetes.io/csi/volumeDevices/NAME/dev/<uid>            device of a pod, a bind mount
//	<root>/plugins/kubernetes.io/csi/volumeDevices/staging/NAME              staging target
//	<root>/plugins/kubernetes.io/csi/volumeDevices/publish/NAME/<uid>        publish target
//	<root>/pods/<uid>/volumeDevices/kubernetes.io~csi/NAME                   link to the publish target
//
// A vol_data.json is written before the first call and deleted after the last one. While it exists, the
// volume may be mounted, and the call that removes it is repeated until it succeeds. A staged volume
// without the mark of berth is that of another program and is not unstaged.
//
// A controller expands a volume to the capacity of its PersistentVolume. The node then expands the file system, when
// the volume is mounted or while it is, and updates the status of the claim. A node cannot watch claims, so Run reads
// those of running pods once a minute.
//
// Each call of a driver has a deadline and ends with its context. Calls for one volume of a driver are
// serialized, calls for different volumes are not: a driver that does not respond delays only the pods
// with its volumes. Mounts are read from the mount table, so that a file system that does not respond
// blocks nothing.
//
// Invariants:
//
//	C1 A volume is not unpublished while its pod needs it, and not unstaged while it is published.
//	C2 A restart of the agent does not stage or publish a volume again that is published.
//	C3 After TearDown of all pods with a volume and a pass of Run, nothing of it is left on the host.
//	C4 A volume that a controller attaches is not staged before volumesInUse of the Node has it.
//	C5 No log line, error or file contains a secret or a token.
package csi
