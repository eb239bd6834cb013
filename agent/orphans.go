package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// endOrphans ends what was left by an earlier life and is not wanted by any
// source: in the runtime, in the store, on the host. It runs once, when every
// source has told all it knows.
func (a *Agent) endOrphans(ctx context.Context) {
	for uid, rec := range a.Records {
		if !a.unknown(uid) {
			continue
		}
		pod := rec.Pod
		if pod == nil {
			pod = a.adopted.pods[uid].Pod
		}
		if pod == nil {
			pod = bare(uid)
		}
		a.orphan(pod, "Deleted")
	}
	for uid, seen := range a.adopted.pods {
		if seen.Pod != nil && a.unknown(uid) {
			a.orphan(seen.Pod, "Orphaned")
		}
	}
	a.adopted = adopted{}
	a.sweepHost(ctx)
}

// sweepHost ends what pods that nobody knows have left on the host: in an
// earlier life, or since then, when the runtime went on with a call that was
// cut off and made a cgroup again that was gone.
func (a *Agent) sweepHost(ctx context.Context) {
	a.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, hostBound)
		defer cancel()
		left, err := a.Host.Pods(ctx)
		if err != nil {
			a.Log.Warn("list what pods left on the host", "err", err)
			return
		}
		a.call(ctx, func() {
			for _, uid := range left {
				if _, just := a.audits.gone[uid]; !just && a.unknown(uid) {
					a.orphan(bare(uid), "Orphaned")
				}
			}
		})
	})
}

// hostBound bounds one reading of what is left on the host.
const hostBound = 30 * time.Second

// unknown reports whether nobody has the pod in hand and nobody wants it.
func (a *Agent) unknown(uid types.UID) bool {
	_, known := a.workers[uid]
	return !known && a.desired.wanted[uid] == nil
}

// orphan ends a pod that nobody wants, with what is known of it.
func (a *Agent) orphan(pod *corev1.Pod, reason string) {
	a.Log.Info("ending a pod that nobody wants", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "reason", reason)
	a.start(Desired{Pod: pod, Termination: &plan.End{Reason: reason, Grace: graceOf(pod), At: time.Now(), Forget: true}})
}

// bare is a pod of which only the UID is known.
func bare(uid types.UID) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Name, pod.Namespace = uid, string(uid), "unknown"
	return pod
}

func graceOf(pod *corev1.Pod) time.Duration { return podspec.GracePeriod(pod) }
