package main

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/eviction"
	"berth/node"
	"berth/node/check"
	"berth/node/pressure"
	"berth/nodeapi"
)

// newPressure creates the monitoring of eviction signals.
func (b *berth) newPressure() *eviction.Monitor {
	b.memoryAlarm = make(chan struct{}, 1)
	b.fileSystems = b.newFileSystems()
	b.reclaimer = b.newReclaimer()
	return eviction.NewMonitor(eviction.MonitorOptions{
		Config: node.PressureConfig(b.config), Read: b.fileSystems.ReadSignals, Notify: b.memoryAlarm, Log: b.log,
		OnObserved: func(v eviction.Observation) { b.metrics.SetPressure(levelsOf(v), conditionsOf(v)) },
		Reclaim:    b.reclaimer.Reclaim,
		OnConditionsChanged: func(v eviction.Observation) {
			if !v.Has(corev1.NodeDiskPressure) {
				b.diskPressure.Store(false)
			}
			b.admissionNode.Update(func(n *admission.Node) { n.PressureConditions = v.Conditions() })
			if b.cluster != nil {
				b.cluster.registration.Trigger()
			}
		},
	})
}

// newFileSystems creates the observation of the file systems of the eviction signals.
func (b *berth) newFileSystems() *node.FileSystems {
	return &node.FileSystems{
		RootDir: b.config.RootDir, Pods: b.host.memoryOfPods, Log: b.log,
		Runtime: func(ctx context.Context) (images, containers string, err error) {
			d, err := b.runtime.client.ImageFilesystem(ctx)
			return d.Path, d.ContainersPath, err
		},
	}
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
