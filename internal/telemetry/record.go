package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// SetPods tells how many pods are wanted, and how many have a running sandbox.
func (m *Metrics) SetPods(wanted, running int) {
	m.wantedPods.Set(float64(wanted))
	m.runningPods.Set(float64(running))
}

// SetContainers tells how many containers there are, by state: created, running,
// exited or unknown.
func (m *Metrics) SetContainers(byState map[string]int) {
	for _, state := range []string{"created", "running", "exited", "unknown"} {
		m.runningContainers.WithLabelValues(state).Set(float64(byState[state]))
	}
}

// CountPodStart tells of a sandbox that was started, or not.
func (m *Metrics) CountPodStart(err error) {
	m.startedPods.Inc()
	if err != nil {
		m.startedPodErrors.Inc()
	}
}

// ObservePodStart tells how long a pod took from first seen to running, and how much
// of that was neither a pull nor a runtime call.
func (m *Metrics) ObservePodStart(total, overhead time.Duration) {
	m.podStart.Observe(total.Seconds())
	m.overhead.Observe(overhead.Seconds())
}

// ObservePodStartSLI tells how long a pod took from its creation to running, and how much of
// that were pulls and init containers.
func (m *Metrics) ObservePodStartSLI(total, excluded time.Duration) {
	m.podStartTotal.Observe(total.Seconds())
	m.podStartSLI.Observe(max(0, total-excluded).Seconds())
}

// ObserveRunPodSandbox tells of a sandbox that was made, or not, by a runtime handler.
func (m *Metrics) ObserveRunPodSandbox(handler string, d time.Duration, err error) {
	m.sandboxDuration.WithLabelValues(handler).Observe(d.Seconds())
	if err != nil {
		m.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// ObserveCgroupOperation tells of work on a pod's cgroup: create, update or destroy.
func (m *Metrics) ObserveCgroupOperation(operation string, d time.Duration) {
	m.cgroupDuration.WithLabelValues(operation).Observe(d.Seconds())
}

// CountContainerStart tells of a container that was started, or not. kind is
// container, init_container or ephemeral_container; code is empty or the
// waiting reason; again says that it has run before.
func (m *Metrics) CountContainerStart(kind, code string, again bool) {
	m.startedContainers.WithLabelValues(kind).Inc()
	if code != "" {
		m.startedContainerErrors.WithLabelValues(kind, code).Inc()
	}
	if again && code == "" {
		m.restarts.Inc()
	}
}

// ObserveRuntimeOperation tells of a call to the runtime. operation is in upstream's form:
// run_podsandbox, create_container, start_container, pull_image, …
func (m *Metrics) ObserveRuntimeOperation(operation string, d time.Duration, err error) {
	m.runtimeOps.WithLabelValues(operation).Inc()
	m.runtimeDuration.WithLabelValues(operation).Observe(d.Seconds())
	if err != nil {
		m.runtimeErrors.WithLabelValues(operation).Inc()
	}
}

// ObserveImagePull tells of a pull that succeeded; size in bytes, 0: unknown.
func (m *Metrics) ObserveImagePull(size uint64, d time.Duration) {
	m.imagePull.WithLabelValues(sizeRange(size)).Observe(d.Seconds())
}

// CountImageMustPullCheck counts a check whether a pod may use an image that is here.
func (m *Metrics) CountImageMustPullCheck(result string) { m.imageChecks.WithLabelValues(result).Inc() }

// sizeRange is upstream's label for the size of an image.
func sizeRange(n uint64) string {
	switch {
	case n == 0:
		return "N/A"
	case n <= 10<<20:
		return "0-10MB"
	case n <= 100<<20:
		return "10MB-100MB"
	case n <= 500<<20:
		return "100MB-500MB"
	case n <= 1<<30:
		return "500MB-1GB"
	case n <= 5<<30:
		return "1GB-5GB"
	case n <= 10<<30:
		return "5GB-10GB"
	case n <= 20<<30:
		return "10GB-20GB"
	case n <= 30<<30:
		return "20GB-30GB"
	case n <= 40<<30:
		return "30GB-40GB"
	case n <= 60<<30:
		return "40GB-60GB"
	case n <= 100<<30:
		return "60GB-100GB"
	}
	return "GT100GB"
}

// CountDevicePluginRegistration counts a registration of a device plugin.
func (m *Metrics) CountDevicePluginRegistration(resource string) {
	m.pluginsRegistered.WithLabelValues(resource).Inc()
}

// ObserveDeviceAllocation tells how long a device plugin took to make devices ready.
func (m *Metrics) ObserveDeviceAllocation(resource string, d time.Duration) {
	m.devicesAllocated.WithLabelValues(resource).Observe(d.Seconds())
}

// SetDevices tells how many devices of a resource there are, are healthy and are given.
func (m *Metrics) SetDevices(resource string, listed, healthy, given int) {
	for state, n := range map[string]int{"listed": listed, "healthy": healthy, "given": given} {
		m.devices.WithLabelValues(resource, state).Set(float64(n))
	}
}

// CountHookHTTPFallback counts an HTTPS hook that succeeded over HTTP.
func (m *Metrics) CountHookHTTPFallback() { m.hookFallbacks.Inc() }

// ObserveStage tells how long one stage of a pass took.
func (m *Metrics) ObserveStage(stage string, d time.Duration) {
	m.stage.WithLabelValues(stage).Observe(d.Seconds())
}

// ObserveSync tells how long a pass took. operation is create, update or sync.
func (m *Metrics) ObserveSync(operation string, d time.Duration) {
	m.pass.Observe(d.Seconds())
	m.workerDuration.WithLabelValues(operation).Observe(d.Seconds())
}

// CountAction tells how an action ended: ok, error or canceled.
func (m *Metrics) CountAction(verb, result string) { m.actions.WithLabelValues(verb, result).Inc() }

// CountAudit tells of a full comparison with the runtime.
func (m *Metrics) CountAudit() { m.audits.Inc() }

// CountDivergence tells of a pod of which an audit found what nothing had told.
func (m *Metrics) CountDivergence() { m.divergences.Inc() }

// CountAdmissionRejection tells of a pod that may not run here.
func (m *Metrics) CountAdmissionRejection(reason string) {
	m.admissionFails.WithLabelValues(reason).Inc()
}

// RegisterStateGauges registers what is asked at every scrape: how many manifest files are
// bad, and whether the local store is in memory only. It is called once.
func (m *Metrics) RegisterStateGauges(badFiles func() int, degraded func() bool) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_bad_manifest_files", Help: "Manifest files that cannot be used as they are now."},
			func() float64 { return float64(badFiles()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_store_degraded", Help: "1 while the local store is in memory only."},
			func() float64 {
				if degraded() {
					return 1
				}
				return 0
			}))
}

// CountLogRotations tells of logs that were moved aside because of their size.
func (m *Metrics) CountLogRotations(n int) { m.logsRotated.Add(float64(n)) }

// LogBytesDropped tells of lines that were more than one minute may have.
func (m *Metrics) LogBytesDropped(n int64) { m.logDropped.Add(float64(n)) }

// CountGarbageCollected tells of n things that were taken away because nobody needs them:
// container, sandbox, pod_logs, container_logs or log_link.
func (m *Metrics) CountGarbageCollected(kind string, n int) {
	m.garbage.WithLabelValues(kind).Add(float64(n))
}

// CountImageGarbageCollected tells of an image that was removed for its age or for space.
func (m *Metrics) CountImageGarbageCollected(reason string) {
	m.imagesCollected.WithLabelValues(reason).Inc()
}

// CountLogBytesFreed tells of logs that were taken away because nobody needs them.
func (m *Metrics) CountLogBytesFreed(n int64) { m.garbageBytes.Add(float64(n)) }

// ObserveStatusSync counts a pod's status that the server has taken, so long after the
// change.
func (m *Metrics) ObserveStatusSync(took time.Duration) { m.statusSync.Observe(took.Seconds()) }

// ObserveLeaseRenewal counts a try to renew the node's lease.
func (m *Metrics) ObserveLeaseRenewal(took time.Duration, err error) {
	if err != nil {
		m.leaseRenewals.WithLabelValues("error").Inc()
		return
	}
	m.leaseRenewals.WithLabelValues("ok").Inc()
	m.leaseDuration.Observe(took.Seconds())
}

// CountRuntimeEventGap tells that the stream of runtime events was interrupted.
func (m *Metrics) CountRuntimeEventGap() { m.eventsMissed.Inc() }

// CountEviction tells that a pod is ended because it took more than it may.
func (m *Metrics) CountEviction(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// SetPressure tells what is left by signal, and which conditions of pressure the node
// is under.
func (m *Metrics) SetPressure(available map[string]int64, under map[string]bool) {
	m.signals.Reset()
	for signal, n := range available {
		m.signals.WithLabelValues(signal).Set(float64(n))
	}
	for condition, is := range under {
		n := 0.0
		if is {
			n = 1
		}
		m.pressure.WithLabelValues(condition).Set(n)
	}
}

// CountLeakCleanup tells that something was removed that the runtime had forgotten.
func (m *Metrics) CountLeakCleanup(kind string) { m.swept.WithLabelValues(kind).Inc() }
