package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// DecideTTL deletes a finished Job, and with it its pods, ttlSecondsAfterFinished after its end. Before that, it
// returns when the time comes. It is the decision of upstream's TTL-after-finished controller, which acts on Jobs of
// other controllers too.
func DecideTTL(now time.Time, job *batchv1.Job) workloads.Decision[batchv1.JobStatus] {
	var out workloads.Decision[batchv1.JobStatus]
	end, finished := Finished(job)
	ttl := job.Spec.TTLSecondsAfterFinished
	if !finished || ttl == nil || job.DeletionTimestamp != nil {
		return out
	}
	at := end.LastTransitionTime.Add(time.Duration(*ttl) * time.Second)
	if now.Before(at) {
		out.Wake = at
		return out
	}
	out.Writes = []workloads.Write{{
		Verb: workloads.Delete, Object: job, Propagation: metav1.DeletePropagationForeground,
	}}
	return out
}
