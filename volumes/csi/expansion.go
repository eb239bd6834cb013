package csi

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annExpansionNotRequired marks a claim whose driver has expanded the volume for all nodes.
const annExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// expandStep is what the node has to do to expand a volume.
type expandStep int

const (
	expandNothing expandStep = iota
	expandClaim              // call the driver and update the status of the claim
	expandNode               // call the driver only: another node has updated the status
)

// expandInputs is what decides whether the node expands a volume.
type expandInputs struct {
	claim    *corev1.PersistentVolumeClaim
	capacity resource.Quantity // of the PersistentVolume
	node     resource.Quantity // size of the volume on this node; zero: not known
	mounting bool              // the volume is being mounted: what is infeasible must not delay the pod
}

// decideExpand decides whether the node expands a volume. A controller has expanded it to the capacity of the
// PersistentVolume, the size for users is the capacity in the status of the claim.
func decideExpand(in expandInputs) expandStep {
	state, claimed := resizeState(in.claim), in.claim.Status.Capacity[corev1.ResourceStorage]
	if claimed.Cmp(in.capacity) >= 0 && state == "" {
		shared := slices.Contains(in.claim.Spec.AccessModes, corev1.ReadWriteMany) &&
			!metav1.HasAnnotation(in.claim.ObjectMeta, annExpansionNotRequired)
		if shared && !in.node.IsZero() && in.node.Cmp(in.capacity) < 0 {
			return expandNode
		}
		return expandNothing
	}
	switch state {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		return expandClaim
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		if !in.mounting {
			return expandClaim
		}
	case "":
		if in.claim.Status.AllocatedResources == nil { // the resizer is older than these fields
			return expandClaim
		}
	case corev1.PersistentVolumeClaimControllerResizeInProgress,
		corev1.PersistentVolumeClaimControllerResizeInfeasible: // the controller has not finished
	}
	return expandNothing
}

// mayExpand reports whether the PersistentVolume has to be read to decide about an expansion.
func mayExpand(claim *corev1.PersistentVolumeClaim, node resource.Quantity) bool {
	has := claim.Status.Capacity[corev1.ResourceStorage]
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	pending := slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
	return pending || resizeState(claim) != "" || requested.Cmp(has) > 0 || !node.IsZero() && node.Cmp(has) < 0
}

// resizeState returns the state of the expansion of a claim. Empty: there is none.
func resizeState(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// resizeConditions are the conditions of a claim about its expansion.
var resizeConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

// expansionStarted returns the change of a claim's status before the driver is called. Nil: there is none.
func expansionStarted(claim *corev1.PersistentVolumeClaim) map[string]any {
	if resizeState(claim) != corev1.PersistentVolumeClaimNodeResizePending {
		return nil
	}
	return allocatedStatus(corev1.PersistentVolumeClaimNodeResizeInProgress)
}

func allocatedStatus(state any) map[string]any {
	return map[string]any{"allocatedResourceStatuses": map[string]any{string(corev1.ResourceStorage): state}}
}

// expansionFinished returns the change of a claim's status after its volume has the size.
func expansionFinished(claim *corev1.PersistentVolumeClaim, size resource.Quantity) map[string]any {
	out := allocatedStatus(nil)
	out["capacity"] = map[string]any{string(corev1.ResourceStorage): size}
	out["conditions"] = slices.DeleteFunc(slices.Clone(claim.Status.Conditions),
		func(c corev1.PersistentVolumeClaimCondition) bool { return slices.Contains(resizeConditions, c.Type) })
	return out
}

// expansionFailed returns the change of a claim's status after an error of the driver that is final. Nil: the status
// has it already.
func expansionFailed(
	claim *corev1.PersistentVolumeClaim, err error, infeasible bool, now time.Time,
) map[string]any {
	message := "failed to expand pvc with " + err.Error()
	old := slices.IndexFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimNodeResizeError
	})
	out := map[string]any{}
	if infeasible && resizeState(claim) != corev1.PersistentVolumeClaimNodeResizeInfeasible {
		out = allocatedStatus(corev1.PersistentVolumeClaimNodeResizeInfeasible)
	}
	if old >= 0 && claim.Status.Conditions[old].Message == message {
		if len(out) == 0 {
			return nil
		}
		return out
	}
	conditions := slices.DeleteFunc(slices.Clone(claim.Status.Conditions),
		func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimNodeResizeError
		})
	out["conditions"] = append(conditions, corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Message: message,
	})
	return out
}

// expansion is the state of the expansion of a volume on this node.
type expansion struct {
	size     resource.Quantity // of the volume on this node; zero: not known
	busy     bool              // Run expands it
	failures int
	retryAt  time.Time
	inUse    bool // the driver expands the volume only while it is not published
}

const (
	maxExpandDelay    = 10 * time.Minute // between attempts that failed
	infeasibleRetries = 4                // failures that an infeasible expansion counts for
)

// failed records a failed call.
func (e *expansion) failed(err error, interval time.Duration, now time.Time) {
	e.failures++
	if isInfeasible(err) {
		e.failures += infeasibleRetries
	}
	e.inUse = status.Code(err) == codes.FailedPrecondition
	e.retryAt = now.Add(min(interval<<min(e.failures, 10), max(interval, maxExpandDelay)))
}

// due reports whether the driver may be called.
func (e *expansion) due(now time.Time) bool { return !e.busy && !e.inUse && !now.Before(e.retryAt) }

// isInfeasible reports whether the driver cannot expand the volume to the size.
func isInfeasible(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}
