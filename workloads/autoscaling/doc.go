// Package autoscaling decides how many replicas the target of a HorizontalPodAutoscaler needs. Conditions, events,
// reasons and the arithmetic are those of kube-controller-manager.
//
// Decide proposes a number of replicas per metric, takes the highest, applies the stabilization windows and the scaling
// policies, and limits the result to minReplicas and maxReplicas. The caller changes the scale of the target and calls
// Decision.Rescaled with the result.
//
// Former recommendations and changes of the scale live in Memory, which the caller keeps between decisions. They are
// lost when the controller restarts, as upstream's.
//
// # Metrics
//
// Resource and ContainerResource metrics come from metrics.k8s.io, Pods and Object metrics from custom.metrics.k8s.io,
// and External metrics from external.metrics.k8s.io. The caller reads them. A metric that cannot be read scales nothing
// down.
//
// # Invariants
//
// The model world (TestModelWorld) checks:
//
//	A1 The number of replicas is between minReplicas and maxReplicas, unless the target was scaled to zero.
//	A2 Within a period of a scaling policy, not more replicas are added or removed than the policy allows, except to
//	   reach minReplicas or maxReplicas.
//	A3 With a metric that failed, nothing is scaled down.
//	A4 The target is never scaled below a recommendation within the stabilization window for scaling down, except to
//	   reach maxReplicas.
//	A5 With constant usage, the target comes to rest, and usage is within the tolerance of the target value or one
//	   replica less would exceed it.
package autoscaling
