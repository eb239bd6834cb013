package controllers

import (
	"cmp"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"berth/control/metrics/subsystem"
	"berth/control/volumes"
)

const (
	volumeSubsystem          = "pv_collector"
	ephemeralVolumeSubsystem = subsystem.Name("ephemeral_volume_controller")
)

var (
	retroactiveClasses = subsystem.Name("").Counter("retroactive_storageclass_total",
		"Number of claims without a storage class that got the default class after their creation.", metrics.ALPHA)
	retroactiveClassErrors = subsystem.Name("").Counter("retroactive_storageclass_errors_total",
		"Number of failed attempts to give the default class to a claim.", metrics.ALPHA)
	ephemeralClaims = ephemeralVolumeSubsystem.Counter("create_total",
		"Number of requests to create the claim of an ephemeral volume.", metrics.ALPHA)
	ephemeralClaimFailures = ephemeralVolumeSubsystem.Counter("create_failures_total",
		"Number of failed requests to create the claim of an ephemeral volume.", metrics.ALPHA)

	// The name has the subsystem twice, as in kube-controller-manager.
	forcedDetaches = subsystem.Name("attach_detach_controller").CounterVec(
		"attachdetach_controller_forced_detaches",
		"Number of VolumeAttachments that were deleted although the node may have used the volume.", metrics.ALPHA,
		"reason")

	volumeMetrics = []metrics.Registerable{retroactiveClasses, retroactiveClassErrors, ephemeralClaims,
		ephemeralClaimFailures, forcedDetaches}
)

func measureRetroactiveClass(err error) {
	if err != nil {
		retroactiveClassErrors.Inc()
		return
	}
	retroactiveClasses.Inc()
}

func measureEphemeralClaim(err error) {
	ephemeralClaims.Inc()
	if err != nil {
		ephemeralClaimFailures.Inc()
	}
}

func volumeDesc(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(metrics.BuildFQName("", volumeSubsystem, name), help, labels, nil, metrics.ALPHA, "")
}

var (
	totalVolumes   = volumeDesc("total_pv_count", "Number of volumes.", "plugin_name", "volume_mode")
	boundVolumes   = volumeDesc("bound_pv_count", "Number of bound volumes.", "storage_class")
	unboundVolumes = volumeDesc("unbound_pv_count", "Number of volumes that are not bound.", "storage_class")
	boundClaims    = volumeDesc("bound_pvc_count", "Number of bound claims.", "namespace", "storage_class",
		"volume_attributes_class")
	unboundClaims = volumeDesc("unbound_pvc_count", "Number of claims that are not bound.", "namespace",
		"storage_class", "volume_attributes_class")
)

// volumeCounts counts claims and volumes when metrics are requested. It reads the stores of the last binder.
type volumeCounts struct {
	metrics.BaseStableCollector

	stores atomic.Pointer[[2]cache.Store] // claims, volumes
}

var volumeCollector = &volumeCounts{}

// follow sets the stores of the claims and the volumes.
func (c *volumeCounts) follow(claims, volumes cache.Store) {
	c.stores.Store(&[2]cache.Store{claims, volumes})
}

// DescribeWithStability implements metrics.StableCollector.
func (c *volumeCounts) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{totalVolumes, boundVolumes, unboundVolumes, boundClaims, unboundClaims} {
		ch <- d
	}
}

// series is one gauge with its labels.
type series struct {
	desc   *metrics.Desc
	labels [3]string
	n      int // number of labels
}

// CollectWithStability implements metrics.StableCollector.
func (c *volumeCounts) CollectWithStability(ch chan<- metrics.Metric) {
	stores := c.stores.Load()
	if stores == nil {
		return
	}
	counts := map[series]float64{}
	for _, obj := range stores[0].List() {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		s := series{unboundClaims, [3]string{claim.Namespace, storagehelpers.GetPersistentVolumeClaimClass(claim),
			ptr.Deref(claim.Spec.VolumeAttributesClassName, "")}, 3}
		if claim.Status.Phase == corev1.ClaimBound {
			s.desc = boundClaims
		}
		counts[s]++
	}
	for _, obj := range stores[1].List() {
		v, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		mode := string(cmp.Or(ptr.Deref(v.Spec.VolumeMode, ""), corev1.PersistentVolumeFilesystem))
		counts[series{totalVolumes, [3]string{volumes.Plugin(v), mode}, 2}]++
		s := series{unboundVolumes, [3]string{storagehelpers.GetPersistentVolumeClass(v)}, 1}
		if v.Status.Phase == corev1.VolumeBound {
			s.desc = boundVolumes
		}
		counts[s]++
	}
	for s, n := range counts {
		ch <- metrics.NewLazyConstMetric(s.desc, metrics.GaugeValue, n, s.labels[:s.n]...)
	}
}
