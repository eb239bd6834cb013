package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/eviction"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/check"
	"berth/node/pressure"
	"berth/nodeapi"
)

// admissionNode is the node for the admission of pods. Labels and taints are updated from the API server,
// pressure conditions by the node.
type admissionNode struct {
	mu       sync.Mutex
	node     admission.Node
	onUpdate func(admission.Node)
}

func (o *admissionNode) update(f func(*admission.Node)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.node)
	o.onUpdate(o.node)
}

// setSupplementalGroupsPolicy sets whether the runtime supports supplementalGroupsPolicy. This can change with
// its version.
func (o *admissionNode) setSupplementalGroupsPolicy(supported bool) {
	o.mu.Lock()
	same := o.node.NoSupplementalGroupsPolicy == !supported
	o.mu.Unlock()
	if !same {
		o.update(func(n *admission.Node) { n.NoSupplementalGroupsPolicy = !supported })
	}
}

// newPressure creates the monitoring of eviction signals.
func (b *berth) newPressure() *eviction.Monitor {
	b.memoryAlarm = make(chan struct{}, 1)
	fs := &filesystems{b: b}
	b.reclaimer = b.newReclaimer(fs)
	return eviction.NewMonitor(eviction.MonitorOptions{
		Config: pressureConfig(b.config), Read: fs.read, Notify: b.memoryAlarm, Log: b.log,
		OnObserved: func(v eviction.Observation) { b.metrics.SetPressure(levelsOf(v), conditionsOf(v)) },
		Reclaim:    b.reclaimer.Reclaim,
		OnConditionsChanged: func(v eviction.Observation) {
			if !v.Has(corev1.NodeDiskPressure) {
				b.diskPressure.Store(false)
			}
			b.admissionNode.update(func(n *admission.Node) { n.PressureConditions = v.Conditions() })
			if b.cluster != nil {
				b.cluster.registration.Trigger()
			}
		},
	})
}

// watchMemory triggers a measurement when the kernel reports memory pressure.
func (b *berth) watchMemory(ctx context.Context) {
	err := node.WatchMemoryPressure(ctx, func() {
		select {
		case b.memoryAlarm <- struct{}{}:
		default:
		}
	})
	if err != nil {
		b.log.Info("memory pressure notifications unavailable, polling every 10 s", "err", err)
	}
}

// pressureConfig returns the eviction thresholds.
func pressureConfig(c *nodeconfig.Config) pressure.Config {
	out := pressure.Config{
		TransitionPeriod: c.Eviction.PressureTransitionPeriod,
		WorkingSetOnly:   c.Eviction.WorkingSetOnly,
	}
	for _, t := range c.Eviction.Thresholds {
		p := pressure.Threshold{
			Signal: pressure.Signal(
				t.Signal,
			), Hard: t.Hard, Percent: t.Percent, GracePeriod: t.Grace, MinReclaimPercent: t.MinReclaimPercent,
		}
		if t.Quantity != nil {
			p.Quantity = t.Quantity.Value()
		}
		if t.MinReclaim != nil {
			p.MinReclaim = t.MinReclaim.Value()
		}
		out.Thresholds = append(out.Thresholds, p)
	}
	isAllocatable := func(t pressure.Threshold) bool { return t.Signal == pressure.AllocatableMemoryAvailable }
	if !c.Cgroups.EnforcePods || slices.ContainsFunc(out.Thresholds, isAllocatable) {
		return out
	}
	// as upstream: if pods share a limit, the threshold applies to that limit as well
	for _, t := range out.Thresholds {
		if t.Signal == pressure.MemoryAvailable && t.Hard {
			t.Signal = pressure.AllocatableMemoryAvailable
			out.Thresholds = append(out.Thresholds, t)
			break
		}
	}
	return out
}

// filesystems are the file systems of the signals. The runtime is queried periodically for those it uses.
type filesystems struct {
	b           *berth
	images      string
	layers      string
	refreshedAt time.Time
}

const filesystemsMaxAge = 5 * time.Minute

func (p *filesystems) read(ctx context.Context) (pressure.Reading, error) {
	p.refresh(ctx)
	return node.ReadSignals(time.Now(), p.sources(p.b.host.memoryOfPods))
}

// refresh queries the runtime for its file systems, if the last result is too old.
func (p *filesystems) refresh(ctx context.Context) {
	if p.images != "" && time.Since(p.refreshedAt) <= filesystemsMaxAge {
		return
	}
	if d, err := p.b.runtime.client.ImageFilesystem(ctx); err == nil {
		p.images, p.layers, p.refreshedAt = d.Path, d.ContainersPath, time.Now()
		p.b.imageFSPath.Store(&d.Path)
	}
}

func (p *filesystems) sources(pods func() node.PodsMemory) node.SignalSources {
	return node.SignalSources{Nodefs: p.b.config.RootDir, Images: p.images, Containers: p.layers, Pods: pods}
}

// pathOf returns the directory of a signal; empty: not a disk signal, or unknown.
func (p *filesystems) pathOf(s pressure.Signal) string {
	switch s {
	case pressure.NodefsAvailable, pressure.NodefsInodesFree:
		return p.b.config.RootDir
	case pressure.ImagefsAvailable, pressure.ImagefsInodesFree:
		return p.images
	case pressure.ContainerfsAvailable, pressure.ContainerfsInodesFree:
		return p.containers()
	case pressure.MemoryAvailable, pressure.AllocatableMemoryAvailable, pressure.PIDAvailable:
	}
	return ""
}

func (p *filesystems) imagesDir() string { return p.images }

// containers is the directory of the writable layers.
func (p *filesystems) containers() string { return cmp.Or(p.layers, p.images) }

func (h *host) memoryOfPods() node.PodsMemory {
	t := h.cgroups.PodsMemory()
	m := node.PodsMemory{
		WorkingSet:     t.WorkingSet,
		NonReclaimable: t.NonReclaimable,
		Limit:          t.Limit,
		HasPSI:         t.PSI != nil,
	}
	if t.PSI != nil {
		m.StalledPercent = t.PSI.Full.Avg10
	}
	return m
}

func levelsOf(v eviction.Observation) map[string]int64 {
	out := make(map[string]int64, len(v.Levels))
	for s, l := range v.Levels {
		out[string(s)] = l.Available
	}
	return out
}

// pressureConditions are the pressure conditions in upstream's order.
var pressureConditions = []corev1.NodeConditionType{
	corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

func conditionsOf(v eviction.Observation) map[string]bool {
	out := map[string]bool{}
	for _, c := range pressureConditions {
		out[string(c)] = v.Has(c)
	}
	return out
}

// pressureWarnings describes the active pressure conditions.
func (b *berth) pressureWarnings() (out []nodeapi.Warning) {
	if v := b.pressure.Latest(); v != nil {
		for _, p := range v.Pressures {
			out = append(out, nodeapi.Warning{Object: "node", Field: string(p.Condition), Message: p.Message()})
		}
	}
	return out
}

// checkPressure adds the pressure conditions with their values.
func (b *berth) checkPressure(add check.AddFunc) {
	v := b.pressure.Latest()
	if v == nil {
		return
	}
	for _, c := range pressureConditions {
		i := slices.IndexFunc(v.Pressures, func(p pressure.Pressure) bool { return p.Condition == c })
		if i >= 0 {
			add(string(c), false, errors.New(v.Pressures[i].Message()), "", pressureRemedy)
			continue
		}
		add(string(c), false, nil, b.pressure.Config.AvailabilityMessage(c, v.Reading), "")
	}
}

const pressureRemedy = "free resources or add capacity: until then new pods are rejected or have to wait, and " +
	"pods are evicted"
