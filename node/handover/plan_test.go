package handover

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/nodeconfig"
)

var rewrite = flag.Bool("rewrite", false, "write the plans in testdata")

func testdata(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestFlagTable compares the table with the flags in the help of the kubelet of Kubernetes 1.37.
func TestFlagTable(t *testing.T) { // H1
	t.Parallel()
	known := strings.Fields(testdata(t, "kubelet-flags.txt"))
	fields := map[string]bool{}
	for _, f := range nodeconfig.Fields() {
		fields[f.Path] = true
	}
	berth := map[string]bool{}
	for _, f := range nodeconfig.BerthFields() {
		berth[f.Name] = true
	}
	for _, name := range known {
		row, ok := flagTable()[name]
		classified := row.field != "" || row.berth != "" || row.note != "" || strings.HasPrefix(name, "config")
		if !ok || !classified {
			t.Errorf("--%s is not classified", name)
		}
		if row.field != "" && !fields[row.field] || row.berth != "" && !berth[row.berth] {
			t.Errorf("--%s has the unknown field %s%s", name, row.field, row.berth)
		}
	}
	old := []string{"pod-infra-container-image"} // of an earlier release
	for name := range flagTable() {
		if !slices.Contains(known, name) && !slices.Contains(old, name) {
			t.Errorf("the kubelet has no flag --%s", name)
		}
	}
}

// TestEveryFieldHasARow sets each field of KubeletConfiguration alone. nodeconfig tests that its table
// has all fields of the type.
func TestEveryFieldHasARow(t *testing.T) { // H1
	t.Parallel()
	for _, f := range nodeconfig.Fields() {
		tree := map[string]any{}
		set(tree, f.Path, "example")
		set(tree, "kind", nodeconfig.KubeletKind)
		set(tree, "apiVersion", nodeconfig.KubeletAPIVersion)
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		s := Resolve([]string{"--config=a"}, []UnitFile{{"a", string(text)}})
		s.classify()
		want := map[nodeconfig.Class]Verdict{
			nodeconfig.Supported: Supported, nodeconfig.Ignored: Ignored, nodeconfig.Rejected: Rejected,
		}[f.Class]
		i := slices.IndexFunc(s.rows, func(r Row) bool { return r.Subject == f.Path })
		if i < 0 || s.rows[i].Verdict != want {
			t.Errorf("%s: got %+v, want %s", f.Path, s.rows, want)
		}
		if want == Rejected && s.rows[i].Note == "" {
			t.Errorf("%s is rejected without a reason", f.Path)
		}
	}
}

// TestPlansOfRealConfigurations compares complete plans with golden files.
func TestPlansOfRealConfigurations(t *testing.T) { // H2
	t.Parallel()
	for _, c := range []struct {
		name      string
		unit      []string
		env       map[string]string
		documents []string
		rejected  bool
	}{
		{
			"kubeadm", []string{"kubelet.service", "10-kubeadm.conf"},
			map[string]string{
				"/var/lib/kubelet/kubeadm-flags.env": "kubeadm-flags.env", "/etc/default/kubelet": "kubelet.env",
			},
			[]string{"config.yaml"}, false,
		},
		{"packages", []string{"kubelet.service"}, nil, []string{"config.yaml", "20-size.conf"}, true},
		{"flags", []string{"kubelet.service"}, nil, nil, true},
	} {
		var files, documents []UnitFile
		for _, f := range c.unit {
			files = append(files, UnitFile{f, testdata(t, c.name, f)})
		}
		for _, f := range c.documents {
			documents = append(documents, UnitFile{f, testdata(t, c.name, f)})
		}
		texts := map[string]string{}
		for path, f := range c.env {
			texts[path] = testdata(t, c.name, f)
		}
		u, err := ParseUnit(files)
		if err != nil {
			t.Fatal(err)
		}
		command, err := u.CommandLine(texts)
		if err != nil {
			t.Fatal(err)
		}
		p := Make(Facts{
			Unit: UnitState{Loaded: true, Enabled: "enabled", Active: true}, Args: command[1:], Documents: documents,
			RuntimeName: "containerd", StateSpace: 1 << 30, Existing: map[string]bool{
				"/etc/kubernetes/kubelet.conf": true, "/etc/kubelet/kubeconfig": true, "/etc/kubelet.kubeconfig": true,
			},
		})
		if got := len(p.Rejected()) > 0; got != c.rejected {
			t.Errorf("%s: rejected %v: %+v", c.name, got, p.Rejected())
		}
		if _, _, err := nodeconfig.Parse([]byte(p.Configuration), &nodeconfig.Flags{}); err != nil && !c.rejected {
			t.Errorf("%s: the configuration is invalid: %v", c.name, err)
		}
		text, err := json.MarshalIndent(p.Rows, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("testdata", c.name, "plan.json"), string(text)+"\n")
		golden(t, filepath.Join("testdata", c.name, "berth.yaml"), p.Configuration)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// ready are facts without any reason to reject.
func ready() Facts {
	return Facts{
		Unit: UnitState{Loaded: true, Enabled: "enabled", Active: true}, RuntimeName: "containerd",
		StateSpace: 1 << 30,
		Args:       []string{"--kubeconfig=/k", "--anonymous-auth=false", "--read-only-port=0"},
		Existing:   map[string]bool{"/k": true},
	}
}

func TestRejectedRows(t *testing.T) {
	t.Parallel()
	pod := func(change func(*corev1.Pod)) func(*Facts) {
		return func(f *Facts) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "u1"}}
			if change != nil {
				change(p)
			}
			f.Pods = append(f.Pods, p)
		}
	}
	checkpoint := func(name, content string) func(*Facts) {
		return func(f *Facts) {
			pod(nil)(f)
			if f.Checkpoints == nil {
				f.Checkpoints = map[string]string{}
			}
			f.Checkpoints[name] = content
		}
	}
	// allocations sets both checkpoints of a pod, and its spec.
	allocations := func(allocated, actuated string, spec func(*corev1.Pod)) func(*Facts) {
		state := func(entry string) string {
			b, err := json.Marshal(map[string]any{"data": `{"entries":{"u1":` + entry + `}}`, "checksum": 1})
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		return func(f *Facts) {
			pod(spec)(f)
			f.Checkpoints = map[string]string{allocatedPods: state(allocated), actuatedPods: state(actuated)}
		}
	}
	container := func(name, cpu string) string {
		return `{"ContainerResources":{"` + name + `":{"limits":{"cpu":"` + cpu + `"}}}}`
	}
	withCPU := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: "c"}
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			p.Spec.Containers = []corev1.Container{c}
		}
	}
	const cpuLimit, sidecarLimit = "spec.containers[c].resources.limits", "spec.initContainers[c].resources.limits"
	const podLevel = `{"ContainerResources":{"c":{}},"PodLevelResources":{"limits":{"cpu":"1","memory":"1Gi"}}}`
	volumeLimit := func(size string) string {
		return `{"ContainerResources":{},"EmptyDirVolumeLimits":{"v":"` + size + `"}}`
	}
	for name, c := range map[string]struct {
		change       func(*Facts)
		subject, pod string // empty subject: not rejected
	}{
		"nothing special": {func(*Facts) {}, "", ""},
		"no unit":         {func(f *Facts) { f.Unit = UnitState{} }, KubeletService, ""},
		"masked unit":     {func(f *Facts) { f.Unit.Enabled = "masked" }, KubeletService, ""},
		"full disk":       {func(f *Facts) { f.StateSpace = 1 << 20 }, nodeconfig.DefaultStateDir, ""},
		"certificate that was rotated": {func(f *Facts) {
			f.OldCertificate = "users[].user.client-certificate-data"
			f.Args = append(f.Args, "--rotate-certificates")
		}, "users[].user.client-certificate-data", ""},
		"certificate without rotation": {func(f *Facts) {
			f.OldCertificate = "users[].user.client-certificate"
		}, "", ""},
		"no kubeconfig":          {func(f *Facts) { f.Existing = nil }, "--kubeconfig", ""},
		"another runtime":        {func(f *Facts) { f.RuntimeName = "cri-o" }, "containerRuntimeEndpoint", ""},
		"runtime down":           {func(f *Facts) { f.RuntimeName = "" }, "containerRuntimeEndpoint", ""},
		"unreachable API server": {func(f *Facts) { f.PodsErr = "timeout" }, "pods of this node", ""},
		"CSI volume": {func(f *Facts) {
			pod(nil)(f)
			f.Volumes = []Volume{{"u1", "kubernetes.io~csi", "data"}, {"u1", "kubernetes.io~secret", "s"}}
		}, "spec.volumes[data]", "shop/db"},
		"volume of an unknown pod": {func(f *Facts) {
			f.Volumes = []Volume{{"u2", "kubernetes.io~local-volume", "disk"}}
		}, "spec.volumes[disk]", "u2"},
		"volumes that berth supports": {func(f *Facts) {
			f.Volumes = []Volume{{"u1", "kubernetes.io~empty-dir", "a"}, {"u1", "kubernetes.io~projected", "b"}}
		}, "", ""},
		"claim in the spec": {pod(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			}}}
		}), "spec.volumes[0].persistentVolumeClaim", "shop/db"},
		"deferred resize": {pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}}
		}), "status.conditions[PodResizePending]", "shop/db"},
		"resize in progress": {
			allocations(container("c", "1"), container("c", "2"), withCPU("1")), cpuLimit, "shop/db",
		},
		"resize in progress of a sidecar": {allocations(container("c", "1"), container("c", "2"), func(p *corev1.Pod) {
			withCPU("1")(p)
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
		}), sidecarLimit, "shop/db"},
		"resize that the kubelet has not seen": {
			allocations(container("c", "1"), container("c", "1"), withCPU("2")), cpuLimit, "shop/db",
		},
		"resize complete": {allocations(container("c", "1"), container("c", "1000m"), withCPU("1")), "", ""},
		"resize of a finished pod": {allocations(container("c", "1"), container("c", "1"), func(p *corev1.Pod) {
			withCPU("2")(p)
			p.Status.Phase = corev1.PodSucceeded
		}), "", ""},
		"container that has not started": {allocations(container("c", "1"), `{"ContainerResources":{}}`, withCPU("1")),
			"", ""},
		"ephemeral container": {allocations(container("c", "1"),
			`{"ContainerResources":{"c":{"limits":{"cpu":"1"}},"debugger":{}}}`, withCPU("1")), "", ""},
		"limits of the pod": {allocations(podLevel,
			`{"ContainerResources":{"c":{"limits":{"cpu":"1","memory":"1Gi"}}}}`, func(p *corev1.Pod) {
				withCPU("1")(p)
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
				}}
			}), "", ""},
		"resize of the pod in progress": {allocations(podLevel,
			`{"ContainerResources":{},"PodLevelResources":{"limits":{"cpu":"2","memory":"1Gi"}}}`, nil),
			"spec.resources.limits", "shop/db"},
		"resize of a volume in progress": {allocations(volumeLimit("1Mi"), volumeLimit("2Mi"), nil),
			"spec.volumes[v].emptyDir.sizeLimit", "shop/db"},
		"unreadable allocations": {checkpoint(allocatedPods, `{"data":"{"}`), allocatedPods, ""},
		"exclusive CPUs": {checkpoint(cpuManager,
			`{"policyName":"static","defaultCpuSet":"1","entries":{"u1":{"c":"0"}},"checksum":1}`),
			"spec.containers[c].resources.requests[cpu]", "shop/db"},
		"exclusive CPUs of a static pod": {func(f *Facts) {
			checkpoint(cpuManager, `{"policyName":"static","entries":{"s1":{"c":"0"}},"checksum":1}`)(f)
			f.Pods[0].Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "s1"}
		}, "spec.containers[c].resources.requests[cpu]", "shop/db"},
		"exclusive CPUs, newer format": {checkpoint(cpuManager,
			`{"policyName":"","checksum":1,"data":"{\"policyName\":\"static\",\"podEntries\":{\"u1\":{}}}"}`),
			"spec.resources.requests[cpu]", "shop/db"},
		"no exclusive CPUs": {checkpoint(cpuManager, `{"policyName":"none","defaultCpuSet":"","checksum":1}`), "", ""},
		"memory of a NUMA node": {checkpoint(memoryManager,
			`{"policyName":"Static","entries":{"u1":{"c":[]}},"checksum":1}`),
			"spec.containers[c].resources.requests[memory]", "shop/db"},
		"devices": {checkpoint(deviceManager,
			`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"example.com/gpu"}]}}`),
			"spec.containers[c].resources.limits[example.com/gpu]", "shop/db"},
		"registered devices": {checkpoint(deviceManager,
			`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/gpu":["0"]}},"Checksum":1}`), "", ""},
		"resource claim": {checkpoint(resourceClaims,
			`{"Data":"{\"ClaimInfoStateList\":[{\"ClaimName\":\"gpu\",\"PodUIDs\":{\"u1\":{}}}]}"}`),
			"spec.resourceClaims", "shop/db"},
		"no resource claim":     {checkpoint(resourceClaims, `{"Data":"{\"ClaimInfoStateList\":null}"}`), "", ""},
		"unreadable checkpoint": {checkpoint(memoryManager, "{"), memoryManager, ""},
		"static pod file without suffix": {func(f *Facts) { f.StaticFiles = []string{"/m/a.yaml", "/m/web"} },
			"/m/web", ""},
		"relative path": {func(f *Facts) { f.Args = append(f.Args, "--root-dir=lib") }, "rootDir", ""},
		"unknown flag": {func(f *Facts) { f.Args = append(f.Args, "--what") },
			"--what", ""},
	} {
		f := ready()
		c.change(&f)
		rejected := Make(f).Rejected()
		if c.subject == "" {
			if len(rejected) > 0 {
				t.Errorf("%s: rejected: %+v", name, rejected)
			}
			continue
		}
		if !slices.ContainsFunc(rejected, func(r Row) bool {
			return r.Subject == c.subject && r.Pod == c.pod && r.Note != ""
		}) {
			t.Errorf("%s: got %+v, want %s of %q", name, rejected, c.subject, c.pod)
		}
	}
}

func TestRunningPodsAndCompare(t *testing.T) {
	t.Parallel()
	pod := func(name, id string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: corev1.PodStatus{
			Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: id,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		}}
	}
	before := RunningPods([]*corev1.Pod{
		pod("c", "3", corev1.PodRunning), pod("a", "1", corev1.PodRunning), pod("b", "2", corev1.PodRunning),
		pod("done", "9", corev1.PodSucceeded),
	})
	after := RunningPods([]*corev1.Pod{pod("a", "1", corev1.PodRunning), pod("b", "7", corev1.PodRunning)})
	want := []Outcome{{"default/a", Adopted, ""}, {"default/b", Changed, "c"}, {"default/c", NotKnown, ""}}
	if d := cmp.Diff(want, Compare(before, after)); d != "" {
		t.Error(d)
	}
	ended := pod("a", "1", corev1.PodSucceeded)
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "1"}}
	ended.Status.ContainerStatuses[0].State = terminated
	looping := pod("b", "2", corev1.PodRunning)
	looping.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	looping.Status.ContainerStatuses[0].LastTerminationState = terminated
	looping.Status.ContainerStatuses[0].LastTerminationState.Terminated.ContainerID = "1"
	for _, o := range Compare(before[:1], AllPods([]*corev1.Pod{ended})) {
		if o.Result != Exited || o.Failed() {
			t.Errorf("a pod that has completed: %+v", o)
		}
	}
	for _, o := range Compare(before[1:2], AllPods([]*corev1.Pod{looping})) {
		if !o.Failed() { // the container that exited is another one
			t.Errorf("a restarted container: %+v", o)
		}
	}
}

// The kubelet finds its address by the name of the node first, and berth would take that of the default route.
func TestNodeAddressesAreKept(t *testing.T) {
	t.Parallel()
	node := []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.7"},
		{Type: corev1.NodeInternalIP, Address: "fd00::7"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
	}
	local := []string{"127.0.0.1", "192.168.1.5", "10.0.0.7", "fd00::7"}
	for name, c := range map[string]struct {
		change func(*Facts)
		want   string
	}{
		"of the Node":  {func(*Facts) {}, "nodeIPs:\n- 10.0.0.7\n- fd00::7\n"},
		"--node-ip":    {func(f *Facts) { f.Args = append(f.Args, "--node-ip=10.0.0.9") }, "nodeIPs:\n- 10.0.0.9\n"},
		"not local":    {func(f *Facts) { f.LocalAddresses = local[:2] }, ""},
		"without Node": {func(f *Facts) { f.NodeAddresses = nil }, ""},
	} {
		f := ready()
		f.NodeAddresses, f.LocalAddresses = node, local
		c.change(&f)
		p := Make(f)
		if len(p.Rejected()) > 0 || !strings.Contains(p.Configuration, c.want) ||
			c.want == "" && strings.Contains(p.Configuration, "nodeIPs") {
			t.Errorf("%s: got %+v\n%s", name, p.Rejected(), p.Configuration)
		}
	}
}
