package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFindVolume(t *testing.T) {
	t.Parallel()
	type change = func(*corev1.PersistentVolumeClaim)
	modes := func(list ...corev1.PersistentVolumeAccessMode) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.AccessModes = list }
	}
	block := corev1.PersistentVolumeBlock
	gold := "gold"
	for _, tc := range []struct {
		name    string
		claim   change
		delayed bool
		volumes []*corev1.PersistentVolume
		want    string
	}{
		{"smallest that fits", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "9Gi"), newVolume("b", "fast", "5Gi"), newVolume("c", "fast", "4Gi")}, "b"},
		{"too small", nil, false, []*corev1.PersistentVolume{newVolume("a", "fast", "4Gi")}, ""},
		{"fewest access modes before size", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", modes(corev1.ReadWriteOnce, corev1.ReadWriteMany)),
			newVolume("b", "fast", "9Gi")}, "b"},
		{"access mode missing", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", modes(corev1.ReadWriteMany))}, ""},
		{"other class", nil, false, []*corev1.PersistentVolume{newVolume("a", "slow", "5Gi")}, ""},
		{"no class", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }, false,
			[]*corev1.PersistentVolume{newVolume("a", "slow", "5Gi"), newVolume("b", "", "5Gi")}, "b"},
		{"volume mode", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, false,
			[]*corev1.PersistentVolume{newVolume("a", "fast", "5Gi"), newVolume("b", "fast", "6Gi",
				func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = &block })}, "b"},
		{"selector", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
		}, false, []*corev1.PersistentVolume{newVolume("a", "fast", "5Gi"), newVolume("b", "fast", "6Gi",
			func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "ssd"} })}, "b"},
		{"volume attributes class", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &gold },
			false, []*corev1.PersistentVolume{newVolume("a", "fast", "5Gi"), newVolume("b", "fast", "6Gi",
				func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &gold })}, "b"},
		{"not available", nil, false, []*corev1.PersistentVolume{newVolume("a", "fast", "5Gi",
			func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased })}, ""},
		{"being deleted", nil, false, []*corev1.PersistentVolume{newVolume("a", "fast", "5Gi",
			func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} })}, ""},
		{"reserved by name", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi"), newVolume("b", "slow", "9Gi", boundTo("data", ""))}, "b"},
		{"reserved by UID before reserved by name", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", boundTo("data", "")),
			newVolume("b", "fast", "9Gi", modes(corev1.ReadWriteOnce, corev1.ReadWriteMany),
				boundTo("data", "uid-data"))}, "b"},
		{"reserved for an earlier claim of that name", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", boundTo("data", "uid-old"))}, ""},
		{"reserved for another claim", nil, false, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", boundTo("other", ""))}, ""},
		{"delayed", nil, true, []*corev1.PersistentVolume{newVolume("a", "fast", "5Gi")}, ""},
		{"delayed and reserved", nil, true, []*corev1.PersistentVolume{
			newVolume("a", "fast", "5Gi", boundTo("data", ""))}, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			claim := newClaim("data", "fast", "5Gi")
			if tc.claim != nil {
				tc.claim(claim)
			}
			got, err := FindVolume(claim, tc.volumes, tc.delayed)
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			if got != nil {
				name = got.Name
			}
			if name != tc.want {
				t.Errorf("got volume %q, want %q", name, tc.want)
			}
		})
	}
}

func TestMatchNode(t *testing.T) {
	t.Parallel()
	onNode := func(name string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}}}
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
		corev1.LabelHostname: "n1", corev1.LabelTopologyZone: "z1"}}}
	selected := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": name}
		}
	}
	inZone := func(zone string) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.
				TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{zone}}}}}
		}
	}
	static := newClass("fast", "", storagev1.VolumeBindingWaitForFirstConsumer)
	dynamic := func(change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
		return newClass("fast", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer, change...)
	}
	claims := func(list ...*corev1.PersistentVolumeClaim) []*corev1.PersistentVolumeClaim { return list }
	for _, tc := range []struct {
		name      string
		class     *storagev1.StorageClass
		claims    []*corev1.PersistentVolumeClaim
		volumes   []*corev1.PersistentVolume
		ok        bool
		bind      map[string]string
		provision int
	}{
		{"volume of the node", static, claims(newClaim("a", "fast", "1Gi")), []*corev1.PersistentVolume{
			newVolume("other", "fast", "1Gi", onNode("n2")), newVolume("own", "fast", "2Gi", onNode("n1"))}, true,
			map[string]string{"a": "own"}, 0},
		{"volume of another node", static, claims(newClaim("a", "fast", "1Gi")), []*corev1.PersistentVolume{
			newVolume("other", "fast", "1Gi", onNode("n2"))}, false, nil, 0},
		{"two claims get two volumes", static, claims(newClaim("big", "fast", "2Gi"), newClaim("small", "fast", "1Gi")),
			[]*corev1.PersistentVolume{newVolume("v1", "fast", "1Gi", onNode("n1")), newVolume("v2", "fast", "2Gi")},
			true, map[string]string{"small": "v1", "big": "v2"}, 0},
		{"too few volumes", static, claims(newClaim("a", "fast", "1Gi"), newClaim("b", "fast", "1Gi")),
			[]*corev1.PersistentVolume{newVolume("v1", "fast", "1Gi")}, false, nil, 0},
		{"provisioned", dynamic(), claims(newClaim("a", "fast", "1Gi")), nil, true, nil, 1},
		{"existing volume before a new one", dynamic(), claims(newClaim("a", "fast", "1Gi"),
			newClaim("b", "fast", "3Gi")), []*corev1.PersistentVolume{newVolume("v1", "fast", "2Gi")}, true,
			map[string]string{"a": "v1"}, 1},
		{"topology allowed", dynamic(inZone("z1")), claims(newClaim("a", "fast", "1Gi")), nil, true, nil, 1},
		{"topology not allowed", dynamic(inZone("z2")), claims(newClaim("a", "fast", "1Gi")), nil, false, nil, 0},
		{"being provisioned here", dynamic(), claims(newClaim("a", "fast", "1Gi", selected("n1"))),
			[]*corev1.PersistentVolume{newVolume("v1", "fast", "2Gi")}, true, nil, 1},
		{"being provisioned elsewhere", dynamic(), claims(newClaim("a", "fast", "1Gi", selected("n2"))), nil, false,
			nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, why := MatchNode(PodClaims{Claims: tc.claims, Volumes: tc.volumes,
				Classes: map[string]*storagev1.StorageClass{"fast": tc.class}}, node)
			if why == "" != tc.ok || len(got.Bind) != len(tc.bind) || len(got.Provision) != tc.provision {
				t.Fatalf("got %+v, %q", got, why)
			}
			for _, b := range got.Bind {
				if tc.bind[b.Claim.Name] != b.Volume.Name {
					t.Errorf("claim %s gets %s, want %s", b.Claim.Name, b.Volume.Name, tc.bind[b.Claim.Name])
				}
			}
		})
	}
}

func TestStorageCapacity(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}}
	capacity := func(zone, size, largest string) *storagev1.CSIStorageCapacity {
		out := &storagev1.CSIStorageCapacity{StorageClassName: "fast"}
		if zone != "" {
			out.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": zone}}
		}
		for text, to := range map[string]**resource.Quantity{size: &out.Capacity, largest: &out.MaximumVolumeSize} {
			if text != "" {
				*to = new(resource.MustParse(text))
			}
		}
		return out
	}
	type byClass = map[string][]*storagev1.CSIStorageCapacity
	for _, tc := range []struct {
		name       string
		capacities byClass
		want       Mismatch
	}{
		{"driver that reports none", nil, ""},
		{"no capacity", byClass{"fast": nil}, NotEnoughStorage},
		{"enough", byClass{"fast": {capacity("a", "2Gi", "")}}, ""},
		{"exactly enough", byClass{"fast": {capacity("a", "1Gi", "")}}, ""},
		{"too little", byClass{"fast": {capacity("a", "1Mi", "")}}, NotEnoughStorage},
		{"largest volume is too small", byClass{"fast": {capacity("a", "9Gi", "1Mi")}},
			NotEnoughStorage},
		{"another zone", byClass{"fast": {capacity("b", "9Gi", "")}}, NotEnoughStorage},
		{"without topology", byClass{"fast": {capacity("", "9Gi", "")}},
			NotEnoughStorage},
		{"second one", byClass{"fast": {capacity("b", "9Gi", ""),
			capacity("a", "9Gi", "")}}, ""},
	} {
		_, why := MatchNode(PodClaims{Claims: []*corev1.PersistentVolumeClaim{newClaim("a", "fast", "1Gi")},
			Classes: map[string]*storagev1.StorageClass{"fast": newClass("fast", "csi.example.com",
				storagev1.VolumeBindingWaitForFirstConsumer)}, Capacities: tc.capacities}, node)
		if why != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, why, tc.want)
		}
	}
}

func TestAllowsZone(t *testing.T) {
	t.Parallel()
	in := func(key, value string) *corev1.PersistentVolume {
		return newVolume("v", "", "1Gi", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{key: value} })
	}
	zone := map[string]string{corev1.LabelTopologyZone: "b"}
	for _, tc := range []struct {
		name   string
		volume *corev1.PersistentVolume
		node   map[string]string
		want   bool
	}{
		{"no labels", newVolume("v", "", "1Gi"), zone, true},
		{"same zone", in(corev1.LabelTopologyZone, "b"), zone, true},
		{"one of several zones", in(corev1.LabelTopologyZone, "a__b"), zone, true},
		{"old label of the volume", in(corev1.LabelFailureDomainBetaZone, "b"), zone, true},
		{"other zone", in(corev1.LabelTopologyZone, "a"), zone, false},
		{"node without zones", in(corev1.LabelTopologyZone, "a"), nil, true},
	} {
		if got := AllowsZone(tc.volume, tc.node); got != tc.want {
			t.Errorf("%s: got %v", tc.name, got)
		}
	}
}
