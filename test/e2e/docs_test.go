package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// The manifests of the Kubernetes documentation, unchanged except for the namespace.

// docsNginx is the pod of "Pods: using Pods".
const docsNginx = `apiVersion: v1
kind: Pod
metadata:
  name: nginx
spec:
  containers:
  - name: nginx
    image: nginx:1.14.2
    ports:
    - containerPort: 80
`

// docsMemory is the pod of "Assign Memory Resources to Containers and Pods".
const docsMemory = `apiVersion: v1
kind: Pod
metadata:
  name: memory-demo
  namespace: mem-example
spec:
  containers:
  - name: memory-demo-ctr
    image: polinux/stress
    resources:
      requests:
        memory: "100Mi"
      limits:
        memory: "200Mi"
    command: ["stress"]
    args: ["--vm", "1", "--vm-bytes", "150M", "--vm-hang", "1"]
`

// docsMemory2 exceeds its limit.
const docsMemory2 = `apiVersion: v1
kind: Pod
metadata:
  name: memory-demo-2
  namespace: mem-example
spec:
  containers:
  - name: memory-demo-2-ctr
    image: polinux/stress
    resources:
      requests:
        memory: "50Mi"
      limits:
        memory: "100Mi"
    command: ["stress"]
    args: ["--vm", "1", "--vm-bytes", "250M", "--vm-hang", "1"]
`

// Docs puts a manifest of the documentation with the test's namespace.
func (s *Namespace) Docs(file, text string) {
	s.t.Helper()
	if strings.Contains(text, "  namespace: mem-example\n") {
		text = strings.Replace(text, "namespace: mem-example", "namespace: NS", 1)
	} else {
		text = strings.Replace(text, "metadata:\n", "metadata:\n  namespace: NS\n", 1)
	}
	s.Put(file, text)
}

func TestDocumentationNginxPodResponds(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Docs("nginx", docsNginx)
		p := s.Running("nginx")
		s.contains("the page", s.waitHTTP("http://"+p.Status.PodIP+":80/"), "nginx")
	})
}

// podCgroup returns the directory of a pod's cgroup for a controller of cgroup v1.
func (s *Namespace) podCgroup(controller string, p *corev1.Pod) string {
	tier := map[corev1.PodQOSClass]string{corev1.PodQOSGuaranteed: "", corev1.PodQOSBurstable: "burstable",
		corev1.PodQOSBestEffort: "besteffort"}[p.Status.QOSClass]
	return filepath.Join("/sys/fs/cgroup", controller, s.Host.CgroupRoot, "kubepods", tier, "pod"+string(p.UID))
}

// cgroupFile reads a file of the cgroup of a container, or of the pod if container is empty.
func (s *Namespace) cgroupFile(p *corev1.Pod, container, controller, file string) string {
	s.t.Helper()
	dir := s.podCgroup(controller, p)
	if container != "" {
		dir = filepath.Join(dir, strings.TrimPrefix(status(p, container).ContainerID, "containerd://"))
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		s.t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func (s *Namespace) checkCgroup(p *corev1.Pod, container, controller, file, want string) {
	s.t.Helper()
	if got := s.cgroupFile(p, container, controller, file); got != want {
		s.t.Errorf("%s of %s/%s: got %s, want %s", file, p.Name, container, got, want)
	}
}

func TestDocumentationMemoryPodRunsWithinLimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Docs("memory-demo", docsMemory)
		p := s.Running("memory-demo")
		s.checkCgroup(p, "memory-demo-ctr", "memory", "memory.limit_in_bytes", strconv.Itoa(200<<20))
		s.checkCgroup(p, "", "memory", "memory.limit_in_bytes", strconv.Itoa(200<<20))
		if st := s.Running("memory-demo").Status; st.QOSClass != corev1.PodQOSBurstable ||
			status(p, "memory-demo-ctr").RestartCount != 0 {
			t.Errorf("QoS %s\n%s", st.QOSClass, brief(p))
		}
		err := hosts.WaitFor(t.Context(), "150 MB to be in use", func() (bool, error) {
			used, err := strconv.Atoi(s.cgroupFile(p, "memory-demo-ctr", "memory", "memory.usage_in_bytes"))
			return used > 140<<20, err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestDocumentationMemoryPodRunsBesideWebServer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Docs("two", strings.Replace(docsMemory, "memory-demo\n", "memory-demo-two\n", 1)+`  - name: web
    image: nginx
    resources:
      requests:
        memory: "32Mi"
        cpu: "100m"
      limits:
        memory: "64Mi"
        cpu: "500m"
`)
		p := s.Running("memory-demo-two")
		s.waitHTTP("http://" + p.Status.PodIP + ":80/")
		s.checkCgroup(p, "memory-demo-ctr", "memory", "memory.limit_in_bytes", strconv.Itoa(200<<20))
		s.checkCgroup(p, "web", "memory", "memory.limit_in_bytes", strconv.Itoa(64<<20))
		s.checkCgroup(p, "web", "cpu", "cpu.cfs_quota_us", "50000")
		s.checkCgroup(p, "web", "cpu", "cpu.shares", "102")
		s.checkCgroup(p, "", "memory", "memory.limit_in_bytes", strconv.Itoa(264<<20))
		s.checkCgroup(p, "", "cpu", "cpu.shares", "102")
		s.Event("memory-demo-two", `Pulled: Successfully pulled image "nginx"`)
	})
}

func TestDocumentationGreedyPodIsOOMKilledAndBacksOff(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Docs("memory-demo-2", docsMemory2)
		killed := func(st corev1.ContainerState) bool {
			return st.Terminated != nil && st.Terminated.Reason == "OOMKilled" && st.Terminated.ExitCode != 0
		}
		p := s.Wait("memory-demo-2", "OOMKilled and backing off", func(p *corev1.Pod) bool {
			c := status(p, "memory-demo-2-ctr")
			return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" &&
				killed(c.LastTerminationState)
		})
		c := status(p, "memory-demo-2-ctr")
		if !strings.Contains(c.State.Waiting.Message,
			fmt.Sprintf("back-off %s restarting failed container=memory-demo-2-ctr", restartBackOff)) {
			t.Errorf("got message %q", c.State.Waiting.Message)
		}
		s.Event("memory-demo-2", "BackOff: ")
		s.Wait("memory-demo-2", "restarted", func(p *corev1.Pod) bool {
			return status(p, "memory-demo-2-ctr").RestartCount >= 1
		})
	})
}
