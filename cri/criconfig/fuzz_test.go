package criconfig

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
)

// seeds are the golden pods as JSON, each with a text and the fields to put it in.
func seeds(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		pod, err := podOf(file)
		if err != nil {
			f.Fatal(err)
		}
		text, err := json.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "", uint64(0))
		f.Add(text, "$(A)\xff\x00=/../", ^uint64(0))
	}
}

// mutatedPod parses a pod and sets the fields selected by the bits of places to the text.
func mutatedPod(text []byte, word string, places uint64) *corev1.Pod {
	pod := &corev1.Pod{}
	if json.Unmarshal(text, pod) != nil {
		return nil
	}
	put := func(n int, field *string) {
		if places>>n&1 == 1 {
			*field = word
		}
	}
	put(0, &pod.Name)
	put(1, &pod.Namespace)
	put(2, (*string)(&pod.UID))
	put(3, &pod.Spec.Hostname)
	put(4, &pod.Spec.Subdomain)
	put(5, (*string)(&pod.Spec.DNSPolicy))
	if places>>6&1 == 1 {
		pod.Labels, pod.Annotations = map[string]string{word: word}, map[string]string{word: word}
	}
	if places>>7&1 == 1 {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: word, Value: word}}}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		put(8, &c.Name)
		put(9, &c.Image)
		put(10, &c.WorkingDir)
		put(11, &c.TerminationMessagePath)
		if places>>12&1 == 1 {
			c.Args = append(c.Args, word)
		}
		for j := range c.Env {
			put(13, &c.Env[j].Name)
			put(14, &c.Env[j].Value)
		}
		if places>>15&1 == 1 {
			c.SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{
				Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &word}}
		}
	}
	return pod
}

// FuzzSandbox checks C1, C2 and C3 for any pod.
func FuzzSandbox(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte, word string, places uint64) {
		pod := mutatedPod(text, word, places)
		if pod == nil {
			return
		}
		before := pod.DeepCopy()
		config, err := Sandbox(testNode(), pod, testSandboxSetup())
		if !reflect.DeepEqual(before, pod) {
			t.Fatalf("the pod was modified: %s", cmp.Diff(before, pod))
		}
		if err != nil {
			return
		}
		checkRoundTrip(t, config)
		s, ok := ParseSandbox(config.Labels, config.Annotations)
		if named := pod.UID != "" && pod.Name != "" && pod.Namespace != ""; ok != named {
			t.Fatalf("ok %t for pod %q %q %q", ok, pod.UID, pod.Namespace, pod.Name)
		}
		if s.UID != pod.UID || s.Name != pod.Name || s.Namespace != pod.Namespace || s.Attempt != 2 ||
			s.HostNetwork != pod.Spec.HostNetwork {
			t.Fatalf("parsed %+v differs from the configuration", s)
		}
		PodFromSandbox(config.Labels, config.Annotations)
	})
}

// FuzzContainer checks C1, C2 and C3 for each container of any pod, and that no
// seccomp profile is outside its directory.
func FuzzContainer(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte, word string, places uint64) {
		pod := mutatedPod(text, word, places)
		if pod == nil {
			return
		}
		before, setup := pod.DeepCopy(), testContainerSetup()
		for _, c := range allContainers(pod) {
			setup.Kind = c.kind
			config, err := Container(testNode(), pod, c.Container, setup)
			if err != nil {
				continue
			}
			checkRoundTrip(t, config)
			l, _ := ParseContainer(config.Labels, config.Annotations)
			if l.Name != c.Name || l.Kind != c.kind || l.Attempt != setup.Attempt || l.Image != c.Image {
				t.Fatalf("parsed %+v differs from the configuration", l)
			}
			if ref := config.Linux.SecurityContext.Seccomp.LocalhostRef; ref != "" &&
				!strings.HasPrefix(ref, testNode().SeccompProfileRoot) {
				t.Fatalf("profile %q", ref)
			}
		}
		if !reflect.DeepEqual(before, pod) {
			t.Fatalf("the pod was modified: %s", cmp.Diff(before, pod))
		}
		want := testContainerSetup()
		want.Kind = setup.Kind
		if !reflect.DeepEqual(want, setup) {
			t.Fatalf("the setup was modified: %s", cmp.Diff(want, setup))
		}
	})
}

// FuzzParse parses arbitrary annotations.
func FuzzParse(f *testing.F) {
	f.Add("v1", "3", `{"exec":{"command":["x"]}}`, `[{"containerPort":80}]`, "sidecar", "30")
	f.Add("v2", "-", "{", "[", "", "")
	f.Fuzz(func(t *testing.T, owner, attempt, hook, ports, kind, grace string) {
		labels := map[string]string{OwnerLabel: owner, labelPodName: "p", labelPodNamespace: "n", labelPodUID: "u",
			labelContainerName: "c"}
		annotations := map[string]string{annotationRestarts: attempt, annotationAttempt: attempt,
			annotationPreStop: hook,
			annotationPorts:   ports, annotationKind: kind, annotationGrace: grace, annotationPosition: attempt,
			annotationPodMeta: hook}
		l, ok := ParseContainer(labels, annotations)
		if ok && owner != OwnerVersion {
			t.Fatal("a foreign container was accepted as owned")
		}
		pod := PodFromSandbox(labels, annotations, l)
		if (pod != nil) != (owner == OwnerVersion) {
			t.Fatalf("owner %q: got pod %v, want none", owner, pod)
		}
	})
}

// FuzzParseResolvConf checks that any text is accepted and gives valid strings.
func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b.\noptions ndots:5\n")
	f.Add("domain\xff x\r\n;#\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := ParseResolvConf(text)
		if err := checkText(dnsConfig(r)); err != nil && !strings.Contains(text, "\x00") {
			t.Fatal(err)
		}
	})
}

// checkRoundTrip fails unless the message survives encoding and decoding.
func checkRoundTrip(t *testing.T, m proto.Message) {
	t.Helper()
	if err := checkText(m); err != nil {
		t.Fatal(err)
	}
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	back := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(wire, back); err != nil || !proto.Equal(m, back) {
		t.Fatalf("the message did not survive the round trip: %v", err)
	}
}
