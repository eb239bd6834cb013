package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent"
	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/report"
	"berth/agent/source"
	"berth/hooks"
	"berth/images"
)

// newAgent joins the adapters to the stages.
func newAgent(b *berth, records map[types.UID]checkpoint.Record) *agent.Agent {
	h, r := b.host, b.runtime
	var sources []agent.Source
	if b.config.StaticPodPath != "" {
		b.folder = source.NewFolder(source.FolderOptions{
			Path: b.config.StaticPodPath, NodeName: b.config.NodeName, Every: b.config.FileCheckFrequency,
			SuffixNodeName: !b.config.Standalone(), Log: b.log, Known: knownPods(records),
		})
		sources = append(sources, b.folder)
	}
	run := hooks.New(hooks.Options{Exec: r.client.ExecSync, HostIPs: h.ips, Warn: b.warnOfPod})
	return agent.New(agent.Config{
		Stages: &agent.Stages{
			Prepare:   agent.Prepare{Runtime: r, Host: h.volumes, Cgroups: h.cgroups, Images: r.images, Network: r.network, RecursiveReadOnly: h.recursiveReadOnly},
			Configure: agent.Configure{Dirs: h.volumes, Volumes: h.volumes, Cgroups: h.cgroups},
			Cleanup:   agent.Cleanup{Containers: r.client, Hooks: run, Sandboxes: r.client, Host: h.volumes, Cgroups: h.cgroups},
			BuildRun: agent.BuildRun{
				Images: r.images, Runtime: r.client, Mounts: h.volumes, Hooks: run,
				CgroupParent: h.cgroups.Parent, LogDir: h.volumes.LogDir, Allocatable: h.Allocatable, HostIPs: h.ips,
			},
		},
		Limits: plan.Limits{
			CrashBase: min(10*time.Second, b.config.Pods.CrashLoopMax), CrashMax: b.config.Pods.CrashLoopMax, CrashReset: 10 * time.Minute,
			PullBase: 10 * time.Second, PullMax: 5 * time.Minute,
			RetryBase: time.Second, RetryMax: 30 * time.Second, MinStop: 2 * time.Second,
			DeadKept: b.config.Dead.Kept, DeadMinAge: b.config.Dead.MinAge,
			HostIPs: h.ips, RuntimeName: "containerd", Probing: true,
		},
		Room: agent.RoomConfig{
			Node: admission.Node{
				Name: b.config.NodeName, Labels: h.labels, Taints: b.config.Node.Taints, Allocatable: h.Allocatable(),
				UnsafeSysctls: b.config.Pods.AllowedUnsafeSysctls,
			},
			Slots: b.config.MaxParallelStarts, Alone: b.config.Standalone(),
		},
		Runtime: r, Host: h, Strays: &strays{b: b}, Sources: sources, Store: b.store, Records: records, Events: b.events, Prober: b.probes, Log: b.log,
		Meters: metersOf(b.metrics),
		Fault:  fault,
	})
}

// knownPods answers with the pods as they were last known.
func knownPods(records map[types.UID]checkpoint.Record) func(types.UID) *corev1.Pod {
	pods := make(map[types.UID]*corev1.Pod, len(records))
	for uid, r := range records {
		pods[uid] = r.Pod
	}
	return func(uid types.UID) *corev1.Pod { return pods[uid] }
}

// warnOfPod tells a warning of an adapter as an event of the pod.
func (b *berth) warnOfPod(pod *corev1.Pod, reason, message string) {
	b.log.Warn(message, "pod", pod.Namespace+"/"+pod.Name, "reason", reason)
	b.events.Record(report.RefOf(pod), report.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message})
}

// collectImages removes images that nobody needs when the disk fills up.
func (b *berth) collectImages(ctx context.Context) {
	c := b.config.Images
	b.runtime.images.RunGC(ctx, images.GCOptions{
		High: c.HighThresholdPerc, Low: c.LowThresholdPerc, MinAge: c.MinimumGCAge, MaxAge: c.MaximumGCAge,
		Keep:  b.runtime.sandboxImage(ctx),
		InUse: b.imagesInUse,
		Ended: func(c images.Collected, err error) {
			if err != nil {
				b.log.Warn("image garbage", "err", err)
			}
		},
	})
}

// imagesInUse names what any pod of the node uses, by name, ID and digest.
func (b *berth) imagesInUse() map[string]bool {
	use := map[string]bool{}
	for _, s := range b.agent.Board.All() {
		for _, k := range s.Seen.Containers {
			use[k.Image], use[k.ImageID] = true, true
		}
		for name, img := range s.Seen.Images {
			use[name], use[img.ID], use[img.Ref] = true, true, true
		}
	}
	delete(use, "")
	return use
}
