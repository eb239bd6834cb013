package localworkloads

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// damage makes the stored objects of a kind unreadable.
func (w *world) damage(kind string) {
	w.t.Helper()
	n := 0
	for k := range w.disk {
		if strings.HasPrefix(k, keyPrefix+kind+"/") {
			w.disk[k] = w.disk[k][:len(w.disk[k])/2]
			n++
		}
	}
	if n == 0 {
		w.t.Fatalf("the local store has no %s", kind)
	}
}

// TestUnreadableOwner: pods whose owner is unreadable in the local store do not run beside those of its successor, nor
// without a file. They stay if their owner is a workload of a file, which is created again with the same UID.
func TestUnreadableOwner(t *testing.T) {
	t.Parallel()
	deployment := fmt.Sprintf(deploymentManifest, 2, 1)
	cronJob := `apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: c, image: "tick:1"}]
`
	for name, c := range map[string]struct {
		file    string
		damaged []string
		deleted bool // the file
		stay    bool // the pods
		pods    int  // afterwards
	}{
		"intact":                      {file: deployment, stay: true, pods: 2},
		"ReplicaSet":                  {file: deployment, damaged: []string{"ReplicaSet"}, pods: 2},
		"Deployment":                  {file: deployment, damaged: []string{"Deployment"}, stay: true, pods: 2},
		"Deployment and ReplicaSet":   {file: deployment, damaged: []string{"Deployment", "ReplicaSet"}, pods: 2},
		"ReplicaSet and deleted file": {file: deployment, damaged: []string{"ReplicaSet"}, deleted: true},
		"Deployment and deleted file": {file: deployment, damaged: []string{"Deployment"}, deleted: true},
		"DaemonSet": {
			file: strings.ReplaceAll(setManifest, "KIND", "DaemonSet"), damaged: []string{"DaemonSet"}, stay: true,
			pods: 1,
		},
		"Job of a CronJob":     {file: cronJob, damaged: []string{"Job"}},
		"Job and deleted file": {file: fmt.Sprintf(jobManifest, 2), damaged: []string{"Job"}, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			w.files["f.yaml"] = c.file
			w.reconciler.SetFiles(workloadsOf(t, w.files))
			w.sync(false)
			w.now = w.now.Add(minFailureDelay * 6) // the schedule of the CronJob
			w.syncAll()
			before := slices.Sorted(maps.Keys(w.pods))
			if len(before) == 0 {
				t.Fatal("no pods run")
			}
			for _, kind := range c.damaged {
				w.damage(kind)
			}
			if c.deleted {
				clear(w.files)
			}
			w.restart()
			w.syncAll()
			after := slices.Sorted(maps.Keys(w.pods))
			if slices.Equal(before, after) != c.stay || len(after) != c.pods {
				t.Errorf("got pods %v, before %v", after, before)
			}
			if c.deleted && !w.reconciler.Empty() {
				t.Errorf("left: %v", w.reconciler.store.index.keys)
			}
			if left := w.reconciler.store.orphans(); len(left) > 0 {
				t.Errorf("objects without an owner: %v", left)
			}
		})
	}
}

// TestOrphansWaitForFiles: nothing is deleted as long as the files have not been read.
func TestOrphansWaitForFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.files["f.yaml"] = fmt.Sprintf(deploymentManifest, 2, 1)
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	w.damage("ReplicaSet")
	w.restart()
	w.reconciler.files = nil
	w.syncAll()
	for _, pod := range w.pods {
		if pod.DeletionTimestamp != nil {
			t.Errorf("pod %s was deleted", pod.Name)
		}
	}
	if len(w.pods) != 4 { // and those of the new ReplicaSet
		t.Errorf("before the files are read, %d pods run", len(w.pods))
	}
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	if len(w.pods) != 2 {
		t.Errorf("when the files are read, %d pods run", len(w.pods))
	}
}

// TestDroppedObjectIsForgotten: nothing is kept in memory about the writes of a deleted object.
func TestDroppedObjectIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.files["f.yaml"] = strings.ReplaceAll(setManifest, "KIND", "StatefulSet")
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	k := key{"StatefulSet", "default", "web"}
	w.reconciler.retries[k], w.reconciler.wakes[k] = 3, w.now.Add(maxFailureDelay)
	w.reconciler.store.drop(k)
	if n := len(w.reconciler.retries) + len(w.reconciler.wakes); n > 0 {
		t.Errorf("kept: %v, %v", w.reconciler.retries, w.reconciler.wakes)
	}
}

// TestGonePodOfDeletedJob: a pod that the agent has deleted before its Job has counted it does not keep a Job whose
// file is deleted at the same time.
func TestGonePodOfDeletedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.files["f.yaml"] = fmt.Sprintf(jobManifest, 1)
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.sync(false)
	for uid, pod := range w.pods {
		w.reconciler.store.remove(keyOf(pod), w.now)
		w.reconciler.PodDeleted(uid, w.now)
		delete(w.pods, uid)
	}
	clear(w.files)
	w.reconciler.SetFiles(nil)
	w.syncAll()
	if !w.reconciler.Empty() {
		t.Errorf("left: %v", w.reconciler.store.index.keys)
	}
}
