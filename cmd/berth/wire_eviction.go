package main

import "berth/agent/eviction"

// limits evicts pods that take more of the disk than their volumes' size limits.
func (b *berth) limits() *eviction.Limits {
	return eviction.NewLimits(eviction.Options{
		Pods: b.agent.Board.All, Over: b.host.volumes.Over, Evict: b.agent.Evict,
		Evicted: b.metrics.Evicted, Standalone: b.config.Standalone(), Log: b.log,
	})
}
