package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CountPodStart counts a pod sandbox start.
func (m *Metrics) CountPodStart(err error) {
	m.startedPods.Inc()
	if err != nil {
		m.startedPodErrors.Inc()
	}
}

// ObservePodStart records the time from a pod first seen to running, and the part that was neither
// an image pull nor a mutating runtime call.
func (m *Metrics) ObservePodStart(total, overhead time.Duration) {
	m.podStart.Observe(total.Seconds())
	m.overhead.Observe(overhead.Seconds())
}

// ObservePodStartSLI records the time from the creation of a pod to running, and the part that was
// image pulls and init containers.
func (m *Metrics) ObservePodStartSLI(total, excluded time.Duration) {
	m.podStartTotal.Observe(total.Seconds())
	m.podStartSLI.Observe(max(0, total-excluded).Seconds())
}

// ObserveRunPodSandbox records a RunPodSandbox call.
func (m *Metrics) ObserveRunPodSandbox(handler string, d time.Duration, err error) {
	m.sandboxDuration.WithLabelValues(handler).Observe(d.Seconds())
	if err != nil {
		m.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// ObserveCgroupOperation records a cgroup operation: create, update or destroy.
func (m *Metrics) ObserveCgroupOperation(operation string, d time.Duration) {
	m.cgroupDuration.WithLabelValues(operation).Observe(d.Seconds())
}

// CountContainerStart counts a container start. kind is container, init_container or
// ephemeral_container. code is empty or the waiting reason. again reports a restart.
func (m *Metrics) CountContainerStart(kind, code string, again bool) {
	m.startedContainers.WithLabelValues(kind).Inc()
	if code != "" {
		m.startedContainerErrors.WithLabelValues(kind, code).Inc()
	}
	if again && code == "" {
		m.restarts.Inc()
	}
}

// ObserveRuntimeOperation records a call to the runtime. operation has upstream's form:
// run_podsandbox, create_container, start_container, pull_image, …
func (m *Metrics) ObserveRuntimeOperation(operation string, d time.Duration, err error) {
	m.runtimeOps.WithLabelValues(operation).Inc()
	m.runtimeDuration.WithLabelValues(operation).Observe(d.Seconds())
	if err != nil {
		m.runtimeErrors.WithLabelValues(operation).Inc()
	}
}

// ObserveImagePull records a successful image pull. size is in bytes, 0 if unknown.
func (m *Metrics) ObserveImagePull(size uint64, d time.Duration) {
	m.imagePull.WithLabelValues(sizeRange(size)).Observe(d.Seconds())
}

// CountImageMustPullCheck counts a check whether a pod may use an image that is present.
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

// ObserveDeviceAllocation records an Allocate call of a device plugin.
func (m *Metrics) ObserveDeviceAllocation(resource string, d time.Duration) {
	m.devicesAllocated.WithLabelValues(resource).Observe(d.Seconds())
}

// SetDevices sets the number of listed, healthy and allocated devices of a resource.
func (m *Metrics) SetDevices(resource string, listed, healthy, allocated int) {
	for state, n := range map[string]int{
		"listed": listed, "healthy": healthy, "allocated": allocated,
		"given": allocated, // deprecated
	} {
		m.devices.WithLabelValues(resource, state).Set(float64(n))
	}
}

// CountHookHTTPFallback counts an HTTPS hook that succeeded over HTTP.
func (m *Metrics) CountHookHTTPFallback() { m.hookFallbacks.Inc() }

// ObserveStage records the duration of one stage of a sync.
func (m *Metrics) ObserveStage(stage string, d time.Duration) {
	m.stage.WithLabelValues(stage).Observe(d.Seconds())
}

// ObserveSync records the duration of a sync. operation is create, update or sync.
func (m *Metrics) ObserveSync(operation string, d time.Duration) {
	m.podSync.Observe(d.Seconds())
	m.workerDuration.WithLabelValues(operation).Observe(d.Seconds())
}

// CountAction counts a finished action. result is ok, error or canceled.
func (m *Metrics) CountAction(verb, result string) { m.actions.WithLabelValues(verb, result).Inc() }

// CountAudit counts a full comparison with the runtime.
func (m *Metrics) CountAudit() { m.audits.Inc() }

// CountDivergence counts a pod for which an audit found a change that no event had reported.
func (m *Metrics) CountDivergence() { m.divergences.Inc() }

// CountAdmissionRejection counts a pod rejected at admission.
func (m *Metrics) CountAdmissionRejection(reason string) {
	m.admissionFails.WithLabelValues(reason).Inc()
}

// CountLogRotations counts rotated container logs.
func (m *Metrics) CountLogRotations(n int) { m.logsRotated.Add(float64(n)) }

// CountGarbageCollected counts garbage collected items: container, sandbox, pod_logs,
// container_logs or log_link.
func (m *Metrics) CountGarbageCollected(kind string, n int) {
	m.garbage.WithLabelValues(kind).Add(float64(n))
}

// CountImageGarbageCollected counts an image removed for its age or for space.
func (m *Metrics) CountImageGarbageCollected(reason string) {
	m.imagesCollected.WithLabelValues(reason).Inc()
}

// CountLogBytesFreed counts bytes of garbage collected logs.
func (m *Metrics) CountLogBytesFreed(n int64) { m.garbageBytes.Add(float64(n)) }

// ObserveStatusSync records the time from a change of a pod's status to its update on the API
// server.
func (m *Metrics) ObserveStatusSync(took time.Duration) { m.statusSync.Observe(took.Seconds()) }

// ObserveLeaseRenewal records an attempt to renew the node lease.
func (m *Metrics) ObserveLeaseRenewal(took time.Duration, err error) {
	if err != nil {
		m.leaseRenewals.WithLabelValues("error").Inc()
		return
	}
	m.leaseRenewals.WithLabelValues("ok").Inc()
	m.leaseDuration.Observe(took.Seconds())
}

// CountRuntimeEventGap counts an interruption of the runtime event stream.
func (m *Metrics) CountRuntimeEventGap() { m.eventGaps.Inc() }

// CountEviction counts a pod eviction.
func (m *Metrics) CountEviction(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// SetPressure sets the available amounts by signal, and the pressure conditions of the node.
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

// CountLeakCleanup counts a removed leak of the runtime.
func (m *Metrics) CountLeakCleanup(kind string) {
	m.leaksRemoved.WithLabelValues(kind).Inc()
	m.leftoversSwept.WithLabelValues(kind).Inc()
}

// ProbeLabels identifies a probe. Kind is Startup, Readiness or Liveness.
type ProbeLabels struct{ Kind, Container, Pod, Namespace, UID string }

// ObserveProbe records a probe. result is successful, failed or unknown.
func (m *Metrics) ObserveProbe(of ProbeLabels, result string, took time.Duration) {
	m.probes.WithLabelValues(of.Kind, result, of.Container, of.Pod, of.Namespace, of.UID).Inc()
	m.probeDuration.WithLabelValues(of.Kind, of.Container, of.Pod, of.Namespace).Observe(took.Seconds())
}

// ObserveProbeDelay records how late a probe started, and how many periods were missed.
func (m *Metrics) ObserveProbeDelay(late time.Duration, missed int64) {
	m.probeDelay.Observe(late.Seconds())
	m.probesMissed.Add(float64(missed))
}

// DeleteProbes deletes the metrics of a deleted pod. A new pod of the same name keeps its counters,
// but restarts its durations.
func (m *Metrics) DeleteProbes(namespace, pod, uid string) {
	m.probes.DeletePartialMatch(prometheus.Labels{"pod_uid": uid})
	m.probeDuration.DeletePartialMatch(prometheus.Labels{"namespace": namespace, "pod": pod})
}
