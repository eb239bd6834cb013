package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/eviction"
	"berth/node"
)

// newPressure creates the monitoring of eviction signals.
func (b *berth) newPressure() *eviction.Monitor {
	b.memoryAlarm = make(chan struct{}, 1)
	b.fileSystems = b.newFileSystems()
	b.reclaimer = b.newReclaimer()
	return eviction.NewMonitor(eviction.MonitorOptions{
		Config: node.PressureConfig(b.config), Read: b.fileSystems.ReadSignals, Notify: b.memoryAlarm, Log: b.log,
		OnObserved: func(v eviction.Observation) { b.metrics.SetPressure(v.AvailableAmounts(), v.ConditionStates()) },
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
