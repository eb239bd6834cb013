package main

import (
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent"
	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/leaks"
	"berth/agent/metrics"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/cni"
	"berth/node"
	"berth/podspec"
	"berth/probes/lifecycle"
)

// newAgent connects the adapters to the agent.
func newAgent(b *berth, records map[types.UID]checkpoint.Record) *agent.Agent {
	return agent.New(agent.Config{
		Stages: b.newStages(),
		Limits: b.planLimits(),
		Allocator: allocator.Config{
			Node:       b.initialNode(),
			StartSlots: b.config.MaxParallelStarts, Standalone: b.config.Standalone(), Released: b.devices.Free,
			// A start uses about one CPU. With one more than there are CPUs, starts
			// that wait for the disk do not leave a CPU idle.
			CPUPressure: node.CPUPressure, CPUPressureThreshold: b.config.StartPressure,
			MinStartSlots: goruntime.NumCPU() + 1,
		},
		Runtime: b.runtime.pods, Host: b.host, Owner: b.host.owner, Leaks: b.leakFinder(),
		Adopter: b.host.adopter,
		Sources: b.newSources(records),
		Store:   b.store, Records: records,
		BootID: node.SystemInfo().BootID, Events: b.events, Prober: b.probes, Log: b.log,
		Metrics:    metrics.New(b.metrics, b.host.runtimeHandler),
		Fault:      fault,
		Heartbeat:  b.heartbeat,
		PodDeleted: b.podDeleted,
	})
}

// newSources creates the sources of desired pods.
func (b *berth) newSources(records map[types.UID]checkpoint.Record) (sources []agent.Source) {
	if b.config.StaticPodPath != "" {
		b.directory = source.NewDirectory(source.DirectoryOptions{
			Path: b.config.StaticPodPath, NodeName: b.config.NodeName, RescanInterval: b.config.FileCheckFrequency,
			SuffixNodeName: !b.config.Standalone(), Log: b.log, PreviousPod: checkpoint.PodLookup(records),
		})
		b.workloads = b.newWorkloads()
		if b.config.Standalone() {
			b.services.local = b.newLocalServices()
		}
		sources = append(sources, fileSource{b, b.workloads})
	}
	if b.cluster != nil {
		sources = append(sources, b.cluster.source)
	}
	return sources
}

// newStages connects the adapters to the stages of a sync.
func (b *berth) newStages() *pod.Stages {
	h, r, sandboxes := b.host, b.runtime, b.newNetworkRuntime()
	hostPorts := podNetwork{cni.HostPorts{Log: b.log}, b.services.policies}
	hooks := lifecycle.New(lifecycle.Options{
		Exec: b.execs.ExecSync, HostIPs: h.ips, UserAgent: "kube-lifecycle/" + node.KubernetesRelease(),
		RecordWarning: b.warnPod, OnHTTPFallback: b.metrics.CountHookHTTPFallback,
	})
	return &pod.Stages{
		Prepare: pod.Prepare{
			Runtime: r.pods, Host: h.volumes, Cgroups: h.cgroups, Images: r.images, Network: r.statuses.Network,
			RecursiveReadOnly: h.recursiveReadOnly, DiskPressure: b.diskPressure.Load,
			HeldPull: r.images.WaitingForSpace, Devices: b.devices.Observe,
		},
		Configure: pod.Configure{Dirs: h.volumes, Volumes: h.volumes, Cgroups: h.cgroups},
		Cleanup: pod.Cleanup{
			Containers: r.client, Hooks: hooks, HostPorts: hostPorts, Sandboxes: sandboxes, Host: h.volumes,
			Cgroups: h.cgroups,
		},
		BuildRun: pod.BuildRun{
			Images: r.images, Runtime: sandboxes, Mounts: h.volumes, Devices: b.devices, Hooks: hooks,
			HostPorts: hostPorts, CgroupParent: h.cgroups.Parent, LogDir: h.volumes.LogDir,
			Allocatable: h.Allocatable, HostIPs: h.ips,
		},
	}
}

// planLimits returns the back-offs and limits of plans.
func (b *berth) planLimits() plan.Limits {
	var recreateBase time.Duration
	if b.config.Standalone() { // no controller recreates a pod that was evicted
		recreateBase = time.Minute
	}
	return plan.Limits{
		CrashBase: min(10*time.Second, b.config.Pods.CrashLoopMax),
		CrashMax:  b.config.Pods.CrashLoopMax, CrashReset: 10 * time.Minute,
		PullBase: 10 * time.Second, PullMax: 5 * time.Minute,
		RetryBase: time.Second, RetryMax: 30 * time.Second, MinStopGrace: 2 * time.Second,
		MaxDeadContainers:   b.config.DeadContainers.MaxPerContainer,
		DeadContainerMinAge: b.config.DeadContainers.MinAge,
		HostIPs:             b.host.ips, RuntimeName: "containerd", Probing: true,
		RecreateBase: recreateBase, RecreateMax: 10 * time.Minute,
	}
}

// initialNode returns the node for admission before the first update from the API server.
func (b *berth) initialNode() admission.Node {
	return admission.Node{
		Name: b.config.NodeName, Labels: b.host.labels, Taints: b.config.Node.Taints,
		Allocatable:   withDevices(b.host.Allocatable(), b.devices.NodeResources().AdmissionCapacity),
		UnsafeSysctls: b.config.Pods.AllowedUnsafeSysctls, NoAppArmor: !node.AppArmorEnabled(),
		LimitedSwap:  b.config.Cgroups.LimitedSwap && b.host.cgroups.V2() && b.host.cgroups.SwapLimits(),
		ShuttingDown: b.startedDuringShutdown, Standalone: b.config.Standalone(),
		AllowUnlistedExtended: !b.config.Standalone(), UnsupportedFeatures: podspec.UnsupportedFeatures(),
	}
}

// warnPod logs a warning about a pod and records it as an event.
func (b *berth) warnPod(pod *corev1.Pod, reason, message string) {
	b.log.Warn("event occurred", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "message", message)
	b.events.Record(events.PodRefOf(pod), events.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message})
}

// invalidManifests counts the invalid manifest files.
func (b *berth) invalidManifests() int { return source.CountInvalidFiles(b.agent.Snapshots()) }

// leakFinder finds leaks of the runtime and of the pod network.
func (b *berth) leakFinder() *leaks.Finder {
	return &leaks.Finder{
		Runtime: b.runtime.client, Network: b.host.network, Networks: b.host.networks,
		OwnsCgroup: b.host.ownsLeakedTask, OwnsPod: b.host.owner.OwnsLeak, ForeignPods: b.host.foreignPods,
		LogDir: b.config.PodLogsDir, Pods: func() []*status.Snapshot { return b.agent.StatusCache.List() },
	}
}
