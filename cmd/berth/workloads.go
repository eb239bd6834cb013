package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/localworkloads"
	"berth/agent/source"
	"berth/cli/explain"
	"berth/nodeapi"
)

// workloadWait limits how long a request waits for a change.
const workloadWait = time.Second

// joinedNote is what users of a node with an API server must know about workloads of files.
const joinedNote = "the API server does not know this workload, only the mirror pods of its pods; to hand it over, " +
	"apply the manifest there and delete the file"

// listWorkloads returns the workloads of manifest files.
func (b *berth) listWorkloads(ctx context.Context, req nodeapi.WorkloadsRequest) ([]nodeapi.Workload, error) {
	out := []nodeapi.Workload{}
	if b.workloads == nil {
		return out, nil
	}
	views, changed := b.workloads.Views()
	if req.Wait {
		timeout := time.NewTimer(workloadWait)
		defer timeout.Stop()
		select {
		case <-changed:
		case <-timeout.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		views, _ = b.workloads.Views()
	}
	for _, v := range views {
		if req.Namespace != "" && v.Object.GetNamespace() != req.Namespace {
			continue
		}
		w, err := b.workload(v)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// workload converts a workload for the local API.
func (b *berth) workload(v localworkloads.View) (nodeapi.Workload, error) {
	o := v.Object
	raw, err := json.Marshal(o)
	if err != nil {
		return nodeapi.Workload{}, fmt.Errorf("encode workload: %w", err)
	}
	w := nodeapi.Workload{
		Kind: o.GetObjectKind().GroupVersionKind().Kind, Namespace: o.GetNamespace(), Name: o.GetName(),
		Object: raw, File: v.File, Overrides: v.Overrides, Events: b.events.List(o.GetUID()),
	}
	for _, r := range v.Revisions {
		w.Revisions = append(w.Revisions, nodeapi.WorkloadRevision{
			Revision: r.Number, ChangeCause: r.ChangeCause, Template: r.Template,
		})
	}
	if v.File != "" && !b.config.Standalone() {
		w.Warnings = append(w.Warnings, nodeapi.Warning{Object: w.Kind + " " + w.Name, Message: joinedNote})
	}
	return w, nil
}

// workloadState returns what is known about a workload.
func (b *berth) workloadState(kind, namespace, name string, previews []localworkloads.Preview) (
	explain.WorkloadState, error) {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
	if b.workloads == nil {
		return explain.WorkloadState{}, missing
	}
	views, _ := b.workloads.Views()
	s, found := explain.NewWorkloadState(views, previews, kind, namespace, name)
	if !found {
		return s, missing
	}
	return s, nil
}

// describeWorkload returns a workload with everything that belongs to it.
func (b *berth) describeWorkload(_ context.Context, kind, namespace, name string) (
	out nodeapi.WorkloadDescription, err error) {
	s, err := b.workloadState(kind, namespace, name, nil)
	if err != nil {
		return out, err
	}
	if out.Workload, err = b.workload(s.View); err != nil {
		return out, err
	}
	for _, v := range s.Children {
		w, err := b.workload(v)
		if err != nil {
			return out, err
		}
		w.Events = nil
		out.Children = append(out.Children, w)
	}
	for _, pod := range s.Pods {
		if snap, known := b.agent.StatusCache.Get(pod.UID); known {
			pod = b.host.networks.Annotated(snap.Object())
		}
		out.Pods = append(out.Pods, *pod)
	}
	return out, nil
}

// whyWorkload returns why not all pods of a workload are ready.
func (b *berth) whyWorkload(ctx context.Context, kind, namespace, name string) (nodeapi.WorkloadExplanation, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	now := time.Now()
	var previews []localworkloads.Preview
	if b.workloads != nil {
		previews = b.workloads.Preview(nil, now)
	}
	s, err := b.workloadState(kind, namespace, name, previews)
	if err != nil {
		return nodeapi.WorkloadExplanation{}, err
	}
	s.Node, s.ShuttingDown = b.workloadNode(), b.workloadsSuspended()
	s.Explanations = map[types.UID]nodeapi.PodExplanation{}
	node := b.node()
	for _, pod := range s.Pods {
		if snap, known := b.agent.StatusCache.Get(pod.UID); known {
			waiting := b.agent.StatusCache.WaitingForName(snap)
			s.Explanations[pod.UID] = node.Why(snap, waiting, b.podState, now)
		}
	}
	return explain.WhyWorkload(s, now), nil
}

// editWorkload changes a workload of a manifest file.
func (b *berth) editWorkload(ctx context.Context, req nodeapi.WorkloadEdit) (
	out nodeapi.WorkloadEditResult, err error) {
	key := source.WorkloadKey{
		Kind: req.Kind, NamespacedName: types.NamespacedName{Namespace: req.Namespace, Name: req.Name},
	}
	if b.workloads == nil {
		return out, apierrors.NewBadRequest("the agent reads no manifest files")
	}
	err = b.workloads.Edit(ctx, func(e *localworkloads.Reconciler, now time.Time) (err error) {
		switch req.Command {
		case nodeapi.ScaleWorkload:
			return e.Scale(key, req.Replicas, now)
		case nodeapi.PauseWorkload:
			return e.Pause(key, true, now)
		case nodeapi.ResumeWorkload:
			return e.Pause(key, false, now)
		case nodeapi.RestartWorkload:
			return e.Restart(key, now)
		case nodeapi.UndoWorkload:
			out.Revision, out.Skipped, err = e.Undo(key, req.Revision, now)
			return err
		}
		return apierrors.NewBadRequest(fmt.Sprintf("unknown command %q", req.Command))
	})
	return out, err
}
