package main

import (
	"context"
	"strings"
	_ "time/tzdata" // the time zones of CronJobs, for hosts without a database

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/localworkloads"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/workloads"
)

// newWorkloads connects the workloads of manifest files.
func (b *berth) newWorkloads() *localworkloads.Source {
	stored, err := b.store.NodeValues(localworkloads.Prefix)
	if err != nil {
		b.log.Warn("stored workloads unreadable", "err", err)
	}
	storedEvents, err := b.store.NodeValues(localworkloads.EventsPrefix)
	if err != nil {
		b.log.Warn("stored events of workloads unreadable", "err", err)
	}
	suffix := ""
	if !b.config.Standalone() {
		suffix = strings.ToLower(b.config.NodeName)
	}
	return localworkloads.NewSource(localworkloads.Options{
		Reconciler: localworkloads.Config{
			Node: b.workloadNode, Record: b.recordWorkload, Log: b.log,
			Created: b.events.PodCreated, Deleted: b.events.PodDeleted,
		},
		Files: b.directory, Store: b.store, Stored: stored, NodeSuffix: suffix, Log: b.log,
		StoredEvents: storedEvents, SaveEvents: b.events.Save, RestoreEvents: b.restoreWorkloadEvents,
		Watch: b.watchWorkloadPods, Suspended: b.workloadsSuspended,
	})
}

// watchWorkloadPods watches the status cache of the agent, which is created after the workloads.
func (b *berth) watchWorkloadPods(ctx context.Context, handle func(status.Event) error) error {
	return b.agent.StatusCache.Watch(ctx, handle)
}

// workloadsSuspended reports that nothing is decided about workloads because the node shuts down.
func (b *berth) workloadsSuspended() bool { return b.startedDuringShutdown || b.drain.ShuttingDown() }

// workloadNode returns this node as DaemonSets see it.
func (b *berth) workloadNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: b.config.NodeName, Labels: b.host.labels},
		Spec:       corev1.NodeSpec{Taints: b.config.Node.Taints},
	}
}

// recordWorkload records an event of a workload.
func (b *berth) recordWorkload(ref corev1.ObjectReference, e workloads.Event) {
	b.events.Record(eventRef(ref), events.Event{Type: e.Type, Reason: e.Reason, Message: e.Message})
}

func (b *berth) restoreWorkloadEvents(ref corev1.ObjectReference, saved []byte) error {
	return b.events.Restore(eventRef(ref), saved)
}

func eventRef(ref corev1.ObjectReference) events.PodRef {
	return events.PodRef{
		Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, Kind: ref.Kind, APIVersion: ref.APIVersion,
	}
}

// podDeleted reports a deleted pod to the workloads.
func (b *berth) podDeleted(uid types.UID) {
	if b.workloads != nil {
		b.workloads.PodDeleted(uid)
	}
}
