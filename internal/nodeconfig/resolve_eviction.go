package nodeconfig

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// signals are the supported eviction signals.
func signals() []string {
	return []string{
		"memory.available",
		"nodefs.available",
		"nodefs.inodesFree",
		"imagefs.available",
		"imagefs.inodesFree",
		"containerfs.available",
		"containerfs.inodesFree",
		"pid.available",
		"allocatableMemory.available",
	}
}

func (l *loader) eviction(c *Config) {
	k := &l.kubelet
	c.Eviction = Eviction{
		PressureTransitionPeriod: l.duration(
			"evictionPressureTransitionPeriod",
			k.EvictionPressureTransitionPeriod,
			0,
		),
		MaxPodGracePeriod: time.Duration(
			l.number("evictionMaxPodGracePeriod", int64(k.EvictionMaxPodGracePeriod), 0, maxInt32),
		) *
			time.Second,
		WorkingSetOnly: l.oneOf(
			"memoryPressureSources",
			cmp.Or(l.berth.MemoryPressureSources, "both"),
			"both",
			"workingSet",
		) == "workingSet",
		LocalStorageIsolation: *k.LocalStorageCapacityIsolation,
	}
	hard := l.thresholds("evictionHard", k.EvictionHard)
	soft := l.thresholds("evictionSoft", k.EvictionSoft)
	l.softGraces(soft)
	l.reclaims(hard, soft)
	for signal := range k.EvictionSoft {
		if d, err := time.ParseDuration(k.EvictionSoftGracePeriod[signal]); err == nil && d > 0 &&
			soft[signal] != nil {
			soft[signal].Grace = d
		}
	}
	for _, set := range []map[string]*Threshold{hard, soft} {
		for _, signal := range slices.Sorted(maps.Keys(set)) {
			t := set[signal]
			t.Hard = soft[signal] != t
			c.Eviction.Thresholds = append(c.Eviction.Thresholds, *t)
		}
	}
	slices.SortStableFunc(c.Eviction.Thresholds, func(a, b Threshold) int {
		switch {
		case a.Hard == b.Hard:
			return cmp.Compare(a.Signal, b.Signal)
		case a.Hard:
			return -1
		}
		return 1
	})
}

// thresholds parses a set of thresholds. As upstream, 0, 0% and 100% disable a signal.
func (l *loader) thresholds(field string, in map[string]string) map[string]*Threshold {
	out := map[string]*Threshold{}
	for _, signal := range slices.Sorted(maps.Keys(in)) {
		path := field + "[" + signal + "]"
		if !slices.Contains(signals(), signal) {
			l.complain(path, "unknown signal, must be one of %s", strings.Join(signals(), ", "))
			continue
		}
		q, percent, ok := l.amount(path, in[signal])
		if !ok || in[signal] == "0%" || in[signal] == "100%" || q != nil && q.IsZero() {
			continue
		}
		out[signal] = &Threshold{Signal: signal, Quantity: q, Percent: percent}
	}
	return out
}

// amount parses a quantity or a percentage.
func (l *loader) amount(path, s string) (*resource.Quantity, float64, bool) {
	if p, ok := strings.CutSuffix(s, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil || !(f >= 0 && f <= 100) {
			l.complain(path, "%q must be from 0%% to 100%%", s)
			return nil, 0, false
		}
		return nil, f, true
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		l.complain(path, "%q must be a quantity such as 100Mi or a percentage such as 10%%", s)
		return nil, 0, false
	}
	if q.Sign() < 0 {
		l.complain(path, "%s must not be negative", s)
		return nil, 0, false
	}
	return &q, 0, true
}

// softGraces validates that every soft threshold has a grace period and vice versa.
func (l *loader) softGraces(soft map[string]*Threshold) {
	const field = "evictionSoftGracePeriod"
	graces := l.kubelet.EvictionSoftGracePeriod
	for _, signal := range slices.Sorted(maps.Keys(soft)) {
		if _, ok := graces[signal]; !ok {
			l.complain("evictionSoft["+signal+"]", "requires an %s", field)
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(graces)) {
		path := field + "[" + signal + "]"
		d, err := time.ParseDuration(graces[signal])
		switch {
		case !slices.Contains(signals(), signal):
			l.complain(path, "unknown signal, must be one of %s", strings.Join(signals(), ", "))
		case err != nil:
			l.complain(path, "%q is not a duration such as 90s", graces[signal])
		case d <= 0:
			l.complain(path, "%s must be more than 0", d)
		}
	}
}

func (l *loader) reclaims(sets ...map[string]*Threshold) {
	const field = "evictionMinimumReclaim"
	for _, signal := range slices.Sorted(maps.Keys(l.kubelet.EvictionMinimumReclaim)) {
		path := field + "[" + signal + "]"
		if !slices.Contains(signals(), signal) {
			l.complain(path, "unknown signal, must be one of %s", strings.Join(signals(), ", "))
			continue
		}
		q, percent, ok := l.amount(path, l.kubelet.EvictionMinimumReclaim[signal])
		if !ok {
			continue
		}
		for _, set := range sets {
			if t := set[signal]; t != nil {
				t.MinReclaim, t.MinReclaimPercent = q, percent
			}
		}
	}
}

// Reserve returns the memory and disk of the hard eviction thresholds, which is not
// allocatable.
func (e Eviction) Reserve(capacity corev1.ResourceList) corev1.ResourceList {
	signals := map[string]corev1.ResourceName{"memory.available": corev1.ResourceMemory,
		"nodefs.available": corev1.ResourceEphemeralStorage}
	out := corev1.ResourceList{}
	for _, t := range e.Thresholds {
		name, of := signals[t.Signal]
		switch {
		case !of || !t.Hard:
		case t.Quantity != nil:
			out[name] = *t.Quantity
		default:
			whole := capacity[name]
			out[name] = *resource.NewQuantity(int64(float64(whole.Value())*t.Percent/100), resource.BinarySI)
		}
	}
	return out
}

// DiskReserve returns the bytes of a file system of that size, in bytes, below which the node evicts pods or deletes
// images for lack of space. The file system may be nodefs, imagefs or containerfs.
func (c *Config) DiskReserve(size int64) (reserve int64) {
	share := func(percent float64) int64 { return int64(float64(size) / 100 * percent) }
	if high := c.Images.HighThresholdPercent; high > 0 && high < 100 {
		reserve = share(float64(100 - high))
	}
	for _, t := range c.Eviction.Thresholds {
		switch t.Signal {
		case "nodefs.available", "imagefs.available", "containerfs.available":
			if t.Quantity != nil {
				reserve = max(reserve, t.Quantity.Value())
			} else {
				reserve = max(reserve, share(t.Percent))
			}
		}
	}
	return reserve
}
