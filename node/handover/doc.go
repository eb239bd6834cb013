// Package handover decides how a node changes from the kubelet to berth and back. It reads the
// kubelet's unit, flags, configuration files and checkpoints, and compares them with what berth
// supports.
//
// Make is a pure function from Facts to a Plan. The plan has one row per flag, field and checkpoint
// of the kubelet: it is supported, ignored, or rejected, which prevents the takeover. NextStep
// is a pure function from the Record of an interrupted hand-over and the state of the host to the
// next step. Read is the only function that reads the host, and only Record.Write writes to it.
//
// Invariants, each checked by a test:
//
//	H1 Every flag of the kubelet and every field of KubeletConfiguration has a row
//	   if it is set. An unknown flag prevents the takeover.
//	H2 A plan without a rejected row has a configuration that berth accepts.
//	H3 The kubelet and berth are never both active. Both takeover and handback can
//	   be repeated after a crash at any step.
//	H4 A completed handback leaves kubelet.service as it was before the takeover:
//	   enabled or not, active or not.
//	H5 Nothing is stopped before the Record with the state of kubelet.service is on
//	   disk.
//	H6 A handback starts a kubelet that was active before, even if nothing can be
//	   written to disk. It does not start one while berth is active.
//	H7 After a power failure at any step, exactly one agent starts at boot if the
//	   kubelet did before. While berth.service is enabled, kubelet.service does
//	   not start.
package handover
