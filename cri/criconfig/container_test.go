package criconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

func TestEnv(t *testing.T) {
	configMap := func(name, key string, optional bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
	}
	secret := func(name, key string, optional bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
	}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	fromMap := func(name, prefix string, optional bool) corev1.EnvFromSource {
		return corev1.EnvFromSource{Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional}}
	}
	for _, row := range []struct {
		name  string
		from  []corev1.EnvFromSource
		env   []corev1.EnvVar
		want  []string
		warns string
		err   string
		kind  plan.ErrorKind
	}{
		{name: "an empty environment"},
		{name: "values are in order", env: []corev1.EnvVar{{Name: "B", Value: "1"}, {Name: "A", Value: "2"}},
			want: []string{"B=1", "A=2"}},
		{name: "the last definition of a name wins", env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B",
			Value: "2"},
			{Name: "A", Value: "3"}}, want: []string{"B=2", "A=3"}},
		{name: "a value can reference earlier variables", env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B",
			Value: "$(A)$(C)"}, {Name: "C", Value: "3"}}, want: []string{"A=1", "B=1$(C)", "C=3"}},
		{name: "two dollars escape a reference", env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B",
			Value: "$$(A)"}}, want: []string{"A=1", "B=$(A)"}},
		{name: "envFrom is sorted and skips invalid names with a warning",
			from: []corev1.EnvFromSource{fromMap("settings", "", false)}, want: []string{"color=blue",
				"size=10"}, warns: `"ключ"`},
		{name: "envFrom takes a prefix", from: []corev1.EnvFromSource{fromMap("settings", "P_", false)},
			want: []string{"P_color=blue", "P_size=10"}, warns: "skipped"},
		{name: "env overrides envFrom", from: []corev1.EnvFromSource{fromMap("settings", "", false)},
			env: []corev1.EnvVar{{Name: "color", Value: "red"}}, want: []string{"size=10", "color=red"},
			warns: "skipped"},
		{name: "values of objects are not expanded", env: []corev1.EnvVar{{Name: "A",
			ValueFrom: field("metadata.annotations['dollar']")}}, want: []string{"A=$(A)"}},
		{name: "a key of a ConfigMap", env: []corev1.EnvVar{{Name: "A", ValueFrom: configMap("settings", "color",
			false)}}, want: []string{"A=blue"}},
		{name: "a key of a Secret", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("keys", "password", false)}},
			want: []string{"A=s3cret"}},
		{name: "values need not be UTF-8", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("keys",
			"raw", false)}}, want: []string{"A=\xff\xfe"}},
		{name: "a missing optional ConfigMap sets nothing", env: []corev1.EnvVar{{Name: "A",
			ValueFrom: configMap("gone", "k", true)}}},
		{name: "a missing optional key sets nothing", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("keys", "k",
			true)}}},
		{name: "a missing optional source sets nothing", from: []corev1.EnvFromSource{fromMap("gone", "", true)}},
		{name: "binary data is not used", env: []corev1.EnvVar{{Name: "A", ValueFrom: configMap("settings",
			"picture", true)}}},
		{name: "a missing ConfigMap is reported", env: []corev1.EnvVar{{Name: "A", ValueFrom: configMap("gone", "k",
			false)}}, err: `configmap "gone" not found`},
		{name: "a Secret that was not read is missing", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("never",
			"k", false)}}, err: `secret "never" not found`},
		{name: "a missing key is reported", env: []corev1.EnvVar{{Name: "A", ValueFrom: configMap("settings", "k",
			false)}}, err: "couldn't find key k in ConfigMap shop/settings"},
		{name: "a missing key of a Secret is reported", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("keys", "k",
			false)}}, err: "couldn't find key k in Secret shop/keys"},
		{name: "a missing source is reported", from: []corev1.EnvFromSource{fromMap("gone", "", false)},
			err: `configmap "gone" not found`},
		{name: "an unreadable object is an error even if optional",
			env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("forbidden", "k", true)}}, err: "permission denied"},
		{name: "a NUL byte is rejected", env: []corev1.EnvVar{{Name: "A", ValueFrom: secret("keys", "nul", false)}},
			err: `env "A": the value has a NUL byte`, kind: plan.Invalid},
		{name: "an unknown field is reported", env: []corev1.EnvVar{{Name: "A", ValueFrom: field("spec.color")}},
			err: `env "A": fieldPath "spec.color"`, kind: plan.Invalid},
		{name: "an empty source is rejected", env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}},
			err: "names no source", kind: plan.Invalid},
		{name: "a name with an equals sign is rejected", env: []corev1.EnvVar{{Name: "A=B"}}, err: "printable ASCII",
			kind: plan.Invalid},
		{name: "an empty name is rejected", env: []corev1.EnvVar{{Name: ""}}, err: "is empty", kind: plan.Invalid},
		{name: "a missing file", env: []corev1.EnvVar{{Name: "A",
			ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: "x.env",
				Key: "K"}}}}, err: `env "A": file "x.env" of volume "v" not found`, kind: plan.Other},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Annotations = map[string]string{"dollar": "$(A)"}
				c.EnvFrom, c.Env = row.from, row.env
			})
			envs, warnings, err := Env(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
			if row.err != "" {
				expectError(t, err, row.kind, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range envs {
				got = append(got, e.Key+"="+string(e.Value))
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if text := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(warnings), "["),
				"]"); (row.warns == "") != (text == "") || !strings.Contains(text, row.warns) {
				t.Errorf("warnings %q, want %q", text, row.warns)
			}
		})
	}
}

func TestErrorsContainNoSecret(t *testing.T) {
	pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
		ref := corev1.LocalObjectReference{Name: "keys"}
		c.Env = []corev1.EnvVar{{Name: "RAW",
			ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref,
				Key: "raw"}}}}
		c.Args = []string{"s3cret $(RAW)"}
	})
	_, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
	expectError(t, err, plan.Invalid, "args[0]: text is not valid UTF-8")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

func TestRunAsNonRoot(t *testing.T) {
	for _, row := range []struct {
		name  string
		user  *int64
		image plan.Image
		err   string
	}{
		{"a user other than root may run", new(int64(1)), plan.Image{UID: new(int64(0))}, ""},
		{"root in the spec is rejected", new(int64(0)), plan.Image{UID: new(int64(5))},
			"container's runAsUser breaks non-root policy"},
		{"a user of the image may run", nil, plan.Image{UID: new(int64(5))}, ""},
		{"root in the image is rejected", nil, plan.Image{UID: new(int64(0))},
			"container has runAsNonRoot and image will run as root"},
		{"an image without a user runs as root", nil, plan.Image{},
			"container has runAsNonRoot and image will run as root"},
		{"a user name may be root", nil, plan.Image{User: "web"},
			"image has non-numeric user (web), cannot verify user is non-root"},
		{"an ID out of range is rejected", nil, plan.Image{UID: new(int64(1) << 40)}, "invalid user id"},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true)}
				c.SecurityContext = &corev1.SecurityContext{RunAsUser: row.user}
			})
			setup := testContainerSetup()
			setup.Image = row.image
			_, err := Container(testNode(), pod, &pod.Spec.Containers[0], setup)
			if row.err != "" {
				expectError(t, err, plan.Invalid, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestRunAsUser(t *testing.T) {
	for _, row := range []struct {
		name           string
		user           *int64
		group          *int64
		image          plan.Image
		uid            *runtimeapi.Int64Value
		username, text string
	}{
		{"the spec overrides the image", new(int64(7)), nil, plan.Image{UID: new(int64(5))}, int64Value(7), "", ""},
		{"the image's ID", nil, nil, plan.Image{UID: new(int64(5))}, int64Value(5), "", ""},
		{"the image's name", nil, nil, plan.Image{User: "web"}, nil, "web", ""},
		{"root is the default", nil, nil, plan.Image{}, int64Value(0), "", ""},
		{"a group always has a user", nil, new(int64(9)), plan.Image{}, int64Value(0), "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
				c.SecurityContext = &corev1.SecurityContext{RunAsUser: row.user, RunAsGroup: row.group}
			})
			setup := testContainerSetup()
			setup.Image = row.image
			got := appOf(t, testNode(), pod, setup).Linux.SecurityContext
			if got.RunAsUser.String() != row.uid.String() || got.RunAsUsername != row.username {
				t.Errorf("user %v %q", got.RunAsUser, got.RunAsUsername)
			}
			if row.group != nil && got.RunAsGroup.GetValue() != *row.group {
				t.Errorf("group %v", got.RunAsGroup)
			}
		})
	}
}

func TestSeccompProfiles(t *testing.T) {
	type profiles struct {
		pod, own *corev1.SeccompProfile
		strict   bool // SeccompDefault
	}
	local := func(file string) *corev1.SeccompProfile {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
	}
	runtimeDefault := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	unconfined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	for _, row := range []struct {
		name string
		in   profiles
		want *runtimeapi.SecurityProfile
		err  string
	}{
		{"the default is unconfined", profiles{}, profile(runtimeapi.SecurityProfile_Unconfined, ""), ""},
		{"the default with SeccompDefault is RuntimeDefault", profiles{strict: true},
			profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), ""},
		{"the container overrides the pod", profiles{pod: unconfined, own: runtimeDefault},
			profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), ""},
		{"the pod overrides the node", profiles{pod: unconfined, strict: true},
			profile(runtimeapi.SecurityProfile_Unconfined, ""), ""},
		{"a file is relative to the node's directory", profiles{own: local("a/b.json")},
			profile(runtimeapi.SecurityProfile_Localhost, "/var/lib/kubelet/seccomp/a/b.json"), ""},
		{"a file outside the directory is rejected", profiles{own: local("../../etc/shadow")}, nil,
			"is not inside the node's seccomp profile directory"},
		{"an absolute path is rejected", profiles{own: local("/etc/shadow")}, nil,
			"is not inside the node's seccomp profile directory"},
		{"an empty path is rejected", profiles{own: local("")}, nil, "must be set when type is Localhost"},
		{"an unknown type is rejected", profiles{own: &corev1.SeccompProfile{Type: "Magic"}}, nil,
			`"Magic" is unknown`},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := testNode()
			node.SeccompDefault = row.in.strict
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: row.in.pod}
				c.SecurityContext = &corev1.SecurityContext{SeccompProfile: row.in.own}
			})
			config, err := Container(node, pod, &pod.Spec.Containers[0], testContainerSetup())
			if row.err != "" {
				expectError(t, err, plan.Invalid, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := config.Linux.SecurityContext.Seccomp; got.String() != row.want.String() {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

func TestAppArmor(t *testing.T) {
	for _, row := range []struct {
		name       string
		annotation string
		own        *corev1.AppArmorProfile
		want       *runtimeapi.SecurityProfile
		err        string
	}{
		{"the runtime decides by default", "", nil, nil, ""},
		{"an annotation sets a profile", "localhost/web", nil, profile(runtimeapi.SecurityProfile_Localhost, "web"),
			""},
		{"an annotation disables AppArmor", "unconfined", nil, profile(runtimeapi.SecurityProfile_Unconfined, ""), ""},
		{"the field overrides the annotation", "unconfined",
			&corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault},
			profile(runtimeapi.SecurityProfile_RuntimeDefault, ""), ""},
		{"an invalid annotation is rejected", "mine", nil, nil, `"mine" is not a profile`},
		{"a Localhost profile needs a name", "", &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost},
			nil,
			"must be set"},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/app": row.annotation}
				c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: row.own}
			})
			config, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
			if row.err != "" {
				expectError(t, err, plan.Invalid, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := config.Linux.SecurityContext.Apparmor; got.String() != row.want.String() {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

func TestResources(t *testing.T) {
	for _, row := range []struct {
		name                 string
		requests, limits     corev1.ResourceList
		node                 func(*Node)
		shares, quota        int64
		memory, swap         int64
		unifiedSwap, oomKill string
	}{
		{"the default is minimum shares and no limit", nil, nil, nil, 2, 0, 0, 0, "0", "1"},
		{"a request is a share", resources("cpu", "500m"), nil, nil, 512, 0, 0, 0, "0", "1"},
		{"a limit alone is a request too", nil, resources("cpu", "500m"), nil, 512, 50000, 0, 0, "0", "1"},
		{"an explicit request of zero does not default to the limit", resources("cpu", "0"), resources("cpu", "500m"),
			nil,
			2, 50000, 0, 0, "0",
			"1"},
		{"shares have a maximum", resources("cpu", "100000"), nil, nil, 262144, 0, 0, 0, "0", "1"},
		{"a tiny limit is rounded up to a quota of a millisecond", nil, resources("cpu", "1m"), nil, 2, 1000, 0, 0, "0",
			"1"},
		{"without CFS quota there is no limit", nil, resources("cpu", "2"), func(n *Node) {
			n.CPUCFSQuotaDisabled = true
		},
			2048, 0, 0, 0, "0", "1"},
		{"memory on v1 includes swap", nil, resources("memory", "1Mi"), func(n *Node) {
			n.CgroupV2 = false
		}, 2, 0, 1 << 20,
			1 << 20, "", ""},
		{"no swap limit without swap accounting", nil, resources("memory", "1Mi"),
			func(n *Node) { n.CgroupV2, n.CanLimitSwap = false, false }, 2, 0, 1 << 20, 0, "", ""},
		{"singleProcessOOMKill", nil, nil, func(n *Node) { n.SingleProcessOOMKill = true }, 2, 0, 0, 0, "0", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := testNode()
			if row.node != nil {
				row.node(&node)
			}
			pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
				c.Resources = corev1.ResourceRequirements{Requests: row.requests, Limits: row.limits}
			})
			got := appOf(t, node, pod, testContainerSetup()).Linux.Resources
			if got.CpuShares != row.shares || got.CpuQuota != row.quota || got.MemoryLimitInBytes != row.memory ||
				got.MemorySwapLimitInBytes != row.swap {
				t.Errorf("got %v", got)
			}
			if got.Unified["memory.swap.max"] != row.unifiedSwap || got.Unified["memory.oom.group"] != row.oomKill {
				t.Errorf("unified %v", got.Unified)
			}
		})
	}
}

// TestContainerInheritsPodLimits: the pod's limits apply to containers without
// limits of their own.
func TestContainerInheritsPodLimits(t *testing.T) {
	for _, row := range []struct {
		name                  string
		requests, limits, pod corev1.ResourceList
		shares, quota, memory int64
	}{
		{"both limits", nil, nil, resources("cpu", "500m", "memory", "1Gi"), 512, 50000, 1 << 30},
		{"the request still determines the shares", resources("cpu", "250m"), nil, resources("cpu", "500m"), 256, 50000,
			0},
		{"each resource separately", nil, resources("memory", "1Mi"), resources("cpu", "500m", "memory", "1Gi"), 512,
			50000,
			1 << 20},
		{"a limit of zero is no limit", nil, resources("memory", "0"), resources("memory", "1Gi"), 2, 0, 1 << 30},
		{"the container's limit takes precedence", nil, resources("cpu", "100m"), resources("cpu", "500m"), 102, 10000,
			0},
		{"a pod without limits", nil, nil, nil, 2, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := testNode()
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: row.pod}
				c.Resources = corev1.ResourceRequirements{Requests: row.requests, Limits: row.limits}
			})
			got := appOf(t, node, pod, testContainerSetup()).Linux.Resources
			if got.CpuShares != row.shares || got.CpuQuota != row.quota || got.MemoryLimitInBytes != row.memory {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestHugePagesUnsupportedByHost(t *testing.T) {
	pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
		c.Resources.Limits = resources("hugepages-16Mi", "16Mi")
	})
	_, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
	expectError(t, err, plan.Unsupported, "no huge pages of 16MB")
}

func TestOOMScoreAdjust(t *testing.T) {
	always := new(corev1.ContainerRestartPolicyAlways)
	request := func(memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: resources("memory", memory)}
	}
	for _, row := range []struct {
		name    string
		change  func(*corev1.Pod, *corev1.Container)
		sidecar bool
		want    int64
	}{
		{"best effort is killed first", func(*corev1.Pod, *corev1.Container) {}, false, 1000},
		{"guaranteed is killed last", func(_ *corev1.Pod, c *corev1.Container) {
			c.Resources = corev1.ResourceRequirements{Requests: resources("cpu", "1", "memory", "1Gi"),
				Limits: resources("cpu", "1", "memory", "1Gi")}
		}, false, -997},
		{"system-node-critical is killed last",
			func(p *corev1.Pod, _ *corev1.Container) {
				p.Spec.PriorityClassName = "system-node-critical"
			}, false, -997},
		{"burstable depends on the fraction of the node's memory", func(_ *corev1.Pod,
			c *corev1.Container) {
			c.Resources = request("2Gi")
		}, false, 750},
		{"a tiny request is killed after best effort", func(_ *corev1.Pod,
			c *corev1.Container) {
			c.Resources = request("1")
		}, false, 999},
		{"a huge request is killed before guaranteed", func(_ *corev1.Pod,
			c *corev1.Container) {
			c.Resources = request("800Gi")
		}, false, 3},
		{"a sidecar is not killed before the main containers", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = request("2Gi")
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: always, Resources: request("1Gi")}}
		}, true, 750},
		{"a large sidecar keeps its own score", func(p *corev1.Pod, c *corev1.Container) {
			c.Resources = request("1Gi")
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: always, Resources: request("4Gi")}}
		}, true, 500},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(row.change)
			c := &pod.Spec.Containers[0]
			if row.sidecar {
				c = &pod.Spec.InitContainers[0]
			}
			if got := OOMScoreAdjust(testNode(), pod, c); got != row.want {
				t.Errorf("got %d, want %d", got, row.want)
			}
		})
	}
}

// TestSELinuxOptions checks that the options of a container replace those of the pod as a whole, and that
// the sandbox has those of the pod.
func TestSELinuxOptions(t *testing.T) {
	ofPod := &corev1.SELinuxOptions{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c1,c2"}
	own := &corev1.SELinuxOptions{Type: "spc_t"}
	for name, row := range map[string]struct{ pod, container, want *corev1.SELinuxOptions }{
		"no options":       {},
		"of the pod":       {pod: ofPod, want: ofPod},
		"of the container": {container: own, want: own},
		"of both":          {pod: ofPod, container: own, want: own},
	} {
		t.Run(name, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: row.pod}
				c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: row.container}
			})
			config, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
			if err != nil {
				t.Fatal(err)
			}
			expectSELinux(t, config.Linux.SecurityContext.SelinuxOptions, row.want)
			sandbox, err := Sandbox(testNode(), pod, testSandboxSetup())
			if err != nil {
				t.Fatal(err)
			}
			expectSELinux(t, sandbox.Linux.SecurityContext.SelinuxOptions, row.pod)
		})
	}
}

func expectSELinux(t *testing.T, got *runtimeapi.SELinuxOption, want *corev1.SELinuxOptions) {
	t.Helper()
	if want == nil {
		want = &corev1.SELinuxOptions{}
	}
	if got.GetUser() != want.User || got.GetRole() != want.Role || got.GetType() != want.Type ||
		got.GetLevel() != want.Level {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestContainerWithUnsupportedFeature checks that no container starts without what it requests.
func TestContainerWithUnsupportedFeature(t *testing.T) {
	for want, change := range map[string]func(*corev1.Container){
		"resources.claims: ": func(c *corev1.Container) {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "x"}}
		},
		"volumeMounts[0].bindMountOptions: ": func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/a", BindMountOptions: []string{"noexec"}}}
		},
	} {
		pod := makePod(func(_ *corev1.Pod, c *corev1.Container) { change(c) })
		_, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
		expectError(t, err, plan.Unsupported, want)
	}
}

func TestMounts(t *testing.T) {
	for _, row := range []struct {
		name  string
		mount plan.Mount
		class string
		mode  corev1.RecursiveReadOnlyMode
		want  func(*runtimeapi.Mount) bool
		kind  plan.ErrorKind
		err   string
	}{
		{"recursive read-only if the runtime supports it", plan.Mount{ContainerPath: "/a", ReadOnly: true,
			RecursiveReadOnly: true}, "", corev1.RecursiveReadOnlyEnabled,
			func(m *runtimeapi.Mount) bool { return m.Readonly && m.RecursiveReadOnly }, 0, ""},
		{"Enabled is rejected if the runtime does not support it", plan.Mount{ContainerPath: "/a", ReadOnly: true,
			RecursiveReadOnly: true}, "virtual", corev1.RecursiveReadOnlyEnabled,
			nil, plan.Unsupported, `runtime handler "kata" does not support recursive read-only mounts`},
		{"IfPossible is plain read-only if the runtime does not support it",
			plan.Mount{ContainerPath: "/a", ReadOnly: true,
				RecursiveReadOnly: true}, "virtual", corev1.RecursiveReadOnlyIfPossible,
			func(m *runtimeapi.Mount) bool { return m.Readonly && !m.RecursiveReadOnly }, 0, ""},
		{"recursive read-only needs read-only", plan.Mount{ContainerPath: "/a", RecursiveReadOnly: true}, "", "", nil,
			plan.Invalid, "needs readOnly"},
		{"HostToContainer propagation",
			plan.Mount{ContainerPath: "/a", Propagation: corev1.MountPropagationHostToContainer},
			"", "",
			func(m *runtimeapi.Mount) bool {
				return m.Propagation == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			}, 0, ""},
		{"an unknown propagation is rejected", plan.Mount{ContainerPath: "/a", Propagation: "Sideways"}, "", "", nil,
			plan.Invalid, `"Sideways" is unknown`},
		{"an image volume has no host path and is read-only", plan.Mount{ContainerPath: "/a", HostPath: "/x",
			Image: "sha256:1"}, "", "",
			func(m *runtimeapi.Mount) bool {
				return m.HostPath == "" && m.Image.Image == "sha256:1" && m.Readonly
			}, 0, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				p.Spec.RuntimeClassName = &row.class
				c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/a/", RecursiveReadOnly: &row.mode}}
			})
			setup := testContainerSetup()
			setup.Mounts = []plan.Mount{row.mount}
			config, err := Container(testNode(), pod, &pod.Spec.Containers[0], setup)
			if row.err != "" {
				expectError(t, err, row.kind, row.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !row.want(config.Mounts[0]) {
				t.Errorf("got %v", config.Mounts[0])
			}
		})
	}
}

func TestStopSignal(t *testing.T) {
	for _, row := range []struct {
		name, signal string
		want         runtimeapi.Signal
		err          string
	}{
		{"a plain signal", "SIGUSR1", runtimeapi.Signal_SIGNAL_SIGUSR1, ""},
		{"a real-time signal", "SIGRTMIN+3", runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, ""},
		{"a real-time signal from the end", "SIGRTMAX-2", runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS2, ""},
		{"an unknown signal", "SIGNOTHING", 0, `"SIGNOTHING" is not a signal`},
		{"the runtime default cannot be set", "RUNTIME_DEFAULT", 0, "is not a signal"},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
				c.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal(row.signal))}
			})
			config, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
			if row.err != "" {
				expectError(t, err, plan.Invalid, row.err)
				return
			}
			if err != nil || config.StopSignal != row.want {
				t.Errorf("got %v, %v", config.GetStopSignal(), err)
			}
		})
	}
}

func TestContainerNameCannotEscapeLogDir(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../other", "a/b"} {
		pod := makePod(func(_ *corev1.Pod, c *corev1.Container) { c.Name = name })
		_, err := Container(testNode(), pod, &pod.Spec.Containers[0], testContainerSetup())
		expectError(t, err, plan.Invalid, "cannot be the name of its log directory")
	}
}

func TestLookupEnv(t *testing.T) {
	t.Parallel()
	lookup := LookupEnv([]*runtimeapi.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "B"}})
	for name, want := range map[string]string{"A": "1 true", "B": " true", "C": " false"} {
		if value, found := lookup(name); fmt.Sprint(value, " ", found) != want {
			t.Errorf("%s: got %q, %t", name, value, found)
		}
	}
}
