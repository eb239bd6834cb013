package cgroups

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// podOf returns a pod with a container for each pair of requests and limits.
func podOf(uid types.UID, lists ...corev1.ResourceList) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "p", "default", uid
	for i := 0; i < len(lists); i += 2 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: string(rune('a' + i)), Image: "i",
			Resources: corev1.ResourceRequirements{Requests: lists[i].DeepCopy(), Limits: lists[i+1].DeepCopy()},
		})
	}
	podspec.SetDefaults(pod)
	return pod
}

func TestSharesAndWeights(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what           string
		milliCPU       int64
		shares, weight uint64
	}{
		{"nothing requested is the least", 0, 2, 1},
		{"one thousandth is rounded up to the least", 1, 2, 1},
		{"a tenth of a CPU", 100, 102, 17},
		{"one CPU has the kernel's default weight", 1000, 1024, 100},
		{"256 CPUs are the most", 256000, 262144, 10000},
		{"more is cut", math.MaxInt64, 262144, 10000},
	} {
		shares := sharesOf(row.milliCPU)
		if shares != row.shares || weightOf(shares) != row.weight {
			t.Errorf("%s: shares %d, weight %d", row.what, shares, weightOf(shares))
		}
	}
	for shares := uint64(2); shares < maxShares; shares++ {
		if a, b := weightOf(shares), weightOf(shares+1); a > b || a < 1 || b > 10000 {
			t.Fatalf("weight of %d shares is %d, that of one more is %d", shares, a, b)
		}
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		milliCPU int64
		period   time.Duration
		quota    int64
	}{
		{"half a CPU of the default period", 500, 0, 50000},
		{"half a CPU of 10 ms", 500, 10 * time.Millisecond, 5000},
		{"the kernel takes no less than 1 ms", 1, 0, 1000},
		{"an absurd limit does not overflow", math.MaxInt64, 0, math.MaxInt64 / 100000 * 100000 / 1000},
	} {
		if quota, _ := quotaOf(row.milliCPU, row.period); quota != row.quota {
			t.Errorf("%s: %d", row.what, quota)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	none := corev1.ResourceList{}
	for _, row := range []struct {
		what   string
		pod    *corev1.Pod
		rules  rules
		v1, v2 map[string]string
	}{
		{
			"a BestEffort pod is limited in nothing", podOf("u", none, none), rules{quota: true},
			map[string]string{"cpu.shares": "2", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "-1",
				"pids.max": "max"},
			map[string]string{"cpu.weight": "1", "cpu.max": "max", "memory.max": "max", "pids.max": "max"},
		},
		{
			"a limit of every container is one of the pod",
			podOf("u", none, list("cpu", "500m", "memory", "64Mi"), none, list("cpu", "500m", "memory", "64Mi")),
			rules{quota: true, pids: 10},
			map[string]string{
				"cpu.shares": "1024", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000",
				"memory.limit_in_bytes": "134217728", "pids.max": "10",
			},
			map[string]string{"cpu.weight": "100", "cpu.max": "100000 100000", "memory.max": "134217728",
				"pids.max": "10"},
		},
		{
			"what one container does not limit the pod does not",
			podOf("u", list("cpu", "1"), list("cpu", "2", "memory", "64Mi"), none, none), rules{quota: true},
			map[string]string{"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "-1",
				"pids.max": "max"},
			map[string]string{"cpu.weight": "100", "cpu.max": "max", "memory.max": "max", "pids.max": "max"},
		},
		{
			"without quotas a CPU limit only shares", podOf("u", none, list("cpu", "1", "memory", "1Mi")), rules{},
			map[string]string{"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "1048576",
				"pids.max": "max"},
			map[string]string{"cpu.weight": "100", "cpu.max": "max", "memory.max": "1048576", "pids.max": "max"},
		},
		{
			"huge pages that are not requested are limited to 0",
			podOf("u", none, list("cpu", "1", "hugepages-2Mi", "4Mi")), rules{hugePages: []string{"2MB", "1GB"}},
			map[string]string{
				"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "-1", "pids.max": "max",
				"hugetlb.2MB.limit_in_bytes": "4194304", "hugetlb.2MB.rsvd.limit_in_bytes": "4194304",
				"hugetlb.1GB.limit_in_bytes": "0", "hugetlb.1GB.rsvd.limit_in_bytes": "0",
			},
			map[string]string{
				"cpu.weight": "100", "cpu.max": "max", "memory.max": "max", "pids.max": "max",
				"hugetlb.2MB.max": "4194304", "hugetlb.2MB.rsvd.max": "4194304", "hugetlb.1GB.max": "0",
				"hugetlb.1GB.rsvd.max": "0",
			},
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			limits := limitsOf(row.pod, row.rules)
			for _, version := range []struct {
				got  []setting
				want map[string]string
			}{{settingsV1(limits), row.v1}, {settingsV2(limits), row.v2}} {
				got := map[string]string{}
				for _, s := range version.got {
					got[s.file] = s.value
				}
				if diff := cmp.Diff(version.want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestHugePageNames(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{
		"hugepages-2048kB": "2MB", "hugepages-1048576kB": "1GB", "hugepages-64kB": "64KB",
		"hugepages-0kB": "", "hugepages-kB": "", "other": "",
	} {
		if got, ok := hugePageName(dir); got != want || ok != (want != "") {
			t.Errorf("%s: %q", dir, got)
		}
	}
	for text, want := range map[string]string{"2Mi": "2MB", "1Gi": "1GB", "64Ki": "64KB", "2M": "", "Mi": "", "xMi": "",
		"": ""} {
		if got, ok := hugePageSize(text); got != want || ok != (want != "") {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestTierShares(t *testing.T) {
	t.Parallel()
	r := requested{}
	steps := []struct {
		what string
		do   func()
		want uint64
	}{
		{"an empty tier has the least", func() {}, 2},
		{"one pod gives its request", func() { r.add(podOf("a", list("cpu", "500m"), nil)) }, 512},
		{"the same pod again gives nothing more", func() { r.add(podOf("a", list("cpu", "500m"), nil)) }, 512},
		{"a second one adds its own", func() { r.add(podOf("b", list("cpu", "1"), nil)) }, 1536},
		{"other classes do not count", func() { r.add(podOf("c", nil, list("cpu", "1", "memory", "1Mi"))) }, 1536},
		{"a removed pod no longer counts", func() { delete(r, "b") }, 512},
	}
	for _, step := range steps {
		if step.do(); r.shares() != step.want {
			t.Errorf("%s: %d", step.what, r.shares())
		}
	}
}

func TestPIDsOfAllPodsAreLimited(t *testing.T) {
	t.Parallel()
	if r := limitsOfAll(list("cpu", "4", "memory", "1Gi"), rules{}); r.Pids != nil {
		t.Errorf("without limit: %d", *r.Pids.Limit)
	}
	r := limitsOfAll(list("cpu", "4", "pid", "31k"), rules{})
	for _, v2 := range []bool{false, true} {
		set := settingsV1(r)
		if v2 {
			set = settingsV2(r)
		}
		if !slices.ContainsFunc(
			set,
			func(s setting) bool { return s.file == "pids.max" && s.value == "31000" && !s.unlimited },
		) {
			t.Errorf("v2 %t: %v", v2, set)
		}
	}
}
