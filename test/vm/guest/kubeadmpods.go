package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// staticPods are pods of the kind that kubeadm writes for a control plane.
var staticPods = map[string]string{
	"static-host": `apiVersion: v1
kind: Pod
metadata: {name: static-host, namespace: kube-system, labels: {tier: control-plane}}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  containers:
  - name: c
    image: docker.io/library/busybox:1.36
    command: [sh, -c, "echo started; exec sleep 1000000"]
    resources: {requests: {cpu: 10m}}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 20, timeoutSeconds: 15}
    startupProbe: {exec: {command: ["true"]}, periodSeconds: 5, timeoutSeconds: 15}
    volumeMounts: [{name: pki, mountPath: /etc/kubernetes/pki, readOnly: true}]
  volumes: [{name: pki, hostPath: {path: /etc/kubernetes/pki, type: DirectoryOrCreate}}]
`,
	"static-net": `apiVersion: v1
kind: Pod
metadata: {name: static-net}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
`,
}

// clusterPods are assigned by the scheduler. Those on the host's network need less time in the machine.
const clusterPods = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {key: value}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {key: secret}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: docker.io/library/busybox:1.36
        command: [sh, -c, "touch /tmp/ready; echo started; exec sleep 1000000"]
        ports: [{containerPort: 80, hostPort: 18080}]
        readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 5, timeoutSeconds: 15}
        livenessProbe: {exec: {command: [sh, -c, "echo x >> /tmp/probes"]}, periodSeconds: 5, timeoutSeconds: 15}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: proxy}}
  template:
    metadata: {labels: {app: proxy}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      tolerations: [{operator: Exists}]
      containers:
      - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: init, image: "docker.io/library/busybox:1.36", command: ["true"]}
  - {name: sidecar, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"], restartPolicy: Always}
  containers:
  - name: c
    image: docker.io/library/busybox:1.36
    command: [sh, -c, "echo kept >> /data/file; echo started; exec sleep 1000000"]
    resources: {limits: {cpu: 100m, memory: 32Mi}}
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: memory, mountPath: /memory}
    - {name: settings, mountPath: /settings}
    - {name: password, mountPath: /password}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password}}
---
apiVersion: v1
kind: Pod
metadata: {name: restarted}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/library/busybox:1.36
    command: [sh, -c, "test -e /data/once || { touch /data/once; exit 1; }; exec sleep 1000000"]
    resources: {requests: {memory: 16Mi}, limits: {memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: levels}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}
  containers:
  - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
`

// canary is a pod that shows that the agent starts pods and has handled all older ones.
const canary = `apiVersion: v1
kind: Pod
metadata: {name: canary-NAME}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "docker.io/library/busybox:1.36", command: [sleep, "1000000"]}
`

// readyPods is the number of pods that become ready.
const readyPods = 7

func writeStaticPods(t *testing.T) {
	t.Helper()
	for name, text := range staticPods {
		writeFile(t, filepath.Join(staticPodDir, name+".yaml"), text)
	}
}

// before is the state before a change, which the checks of the next boot read too.
type before struct {
	State       map[string]string // of containers and pods
	Ready       map[string]string // since when pods are ready
	Certificate string            // file of the kubelet's client certificate at the takeover
	Boot        string            // ID of the boot of the takeover
}

const beforeFile = "/root/before.json"

func loadBefore(t *testing.T) (b before) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, beforeFile)), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b before) save(t *testing.T) {
	t.Helper()
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, beforeFile, string(text))
}

// kubeletPods creates the pods and waits until they are ready.
func kubeletPods(t *testing.T) {
	longChecks(t)
	apply(t, clusterPods)
	waitPodsReady(t, readyPods)
	output(t, "kubectl", "debug", "db", "--image=docker.io/library/busybox:1.36", "--target=c", "--container=debugger",
		"--profile=general", "--", "sleep", "1000000")
	waitFor(t, "the ephemeral container to run", func() (bool, string) {
		p, err := client(t).CoreV1().Pods("default").Get(t.Context(), "db", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		list := p.Status.EphemeralContainerStatuses
		return len(list) == 1 && list[0].State.Running != nil, fmt.Sprint(list)
	})
	checkWrites(t, 1)
	state, ready := observe(t)
	if len(state) < 3*readyPods {
		t.Errorf("the state has only %d entries: %v", len(state), state)
	}
	if got := state["status default/restarted/c"]; !strings.HasSuffix(got, " 1 restarts") {
		t.Errorf("pod restarted: got %q, want 1 restarts", got)
	}
	cert, err := os.Readlink(clientCert)
	if err != nil {
		t.Error(err)
	}
	boot := strings.TrimSpace(readFile(t, "/proc/sys/kernel/random/boot_id"))
	before{State: state, Ready: ready, Certificate: cert, Boot: boot}.save(t)
}

func apply(t *testing.T, text string) {
	t.Helper()
	const file = "/root/apply.yaml"
	writeFile(t, file, text)
	output(t, "kubectl", "apply", "--validate=false", "-f", file) // which needs no download of all schemas
}

// startCanary starts a pod with the agent that runs.
func startCanary(t *testing.T, name string) {
	t.Helper()
	apply(t, strings.ReplaceAll(canary, "NAME", name))
	waitFor(t, "pod canary-"+name+" to be ready", func() (bool, string) {
		p, err := client(t).CoreV1().Pods("default").Get(t.Context(), "canary-"+name, metav1.GetOptions{})
		return err == nil && readyCondition(p).Status == corev1.ConditionTrue, fmt.Sprint(summary(p), err)
	})
}

// checkWrites checks the number of starts of the container of db, which writes a line to a volume at its start.
func checkWrites(t *testing.T, starts int) {
	t.Helper()
	if got := output(t, "kubectl", "exec", "db", "-c", "c", "--", "cat", "/data/file"); got != strings.TrimSuffix(
		strings.Repeat("kept\n", starts), "\n") {
		t.Errorf("volume of db: got %q, want %d lines", got, starts)
	}
}

func readyCondition(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{}
}

// listPods returns all pods of the control server.
func listPods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := client(t).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return nil
	}
	return list.Items
}

// waitPodsReady waits until so many pods exist and all are ready.
func waitPodsReady(t *testing.T, count int) {
	t.Helper()
	waitFor(t, "all pods to be ready", func() (bool, string) {
		pods := listPods(t)
		var text strings.Builder
		ready := 0
		for i := range pods {
			p := &pods[i]
			if readyCondition(p).Status == corev1.ConditionTrue {
				ready++
			} else {
				fmt.Fprintf(&text, "%s: %s\n", p.Name, summary(p))
			}
		}
		return ready >= count && ready == len(pods), text.String()
	})
}

// waitStartedAfter waits until the statuses of all pods are those of containers that were started after a time. Before
// the agent has reported after a reboot, they are those of the boot before.
func waitStartedAfter(t *testing.T, boot time.Time) {
	t.Helper()
	waitFor(t, "all containers to be started again", func() (bool, string) {
		var text strings.Builder
		pods := listPods(t)
		for i := range pods {
			p := &pods[i]
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				init := slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool {
					return c.Name == s.Name
				})
				running := s.State.Running
				if running == nil && init && s.State.Terminated != nil {
					continue
				}
				if running == nil || running.StartedAt.Time.Before(boot.Truncate(time.Second)) {
					fmt.Fprintf(&text, "%s/%s: %v\n", p.Name, s.Name, s.State)
				}
			}
		}
		return len(pods) > 0 && text.Len() == 0, text.String()
	})
}

// observe returns what must not change: sandboxes and running containers with their PIDs and attempts,
// addresses, restart counts and UIDs of pods. It also returns since when pods are ready. Canaries are ignored.
func observe(t *testing.T) (state, ready map[string]string) {
	t.Helper()
	state, ready = map[string]string{}, map[string]string{}
	conn, err := grpc.NewClient(dialRuntime, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	sandboxes, err := runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sandboxes.Items {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY && !isCanary(s.Metadata.Name) {
			state["sandbox "+s.Metadata.Name] = s.Id + " " + s.Metadata.Uid
		}
	}
	list, err := runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Containers {
		pod := c.Labels["io.kubernetes.pod.name"]
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING || isCanary(pod) {
			continue
		}
		status, err := runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id,
			Verbose: true})
		var info struct{ PID int }
		if err == nil {
			err = json.Unmarshal([]byte(status.Info["info"]), &info)
		}
		if err != nil {
			t.Fatal(err)
		}
		state["container "+pod+"/"+c.Metadata.Name] = fmt.Sprintf("%s pid %d attempt %d", c.Id, info.PID,
			c.Metadata.Attempt)
	}
	pods := listPods(t)
	for i := range pods {
		p := &pods[i]
		name := p.Namespace + "/" + p.Name
		if isCanary(p.Name) {
			continue
		}
		state["pod "+name] = fmt.Sprint(p.UID, " ", p.Annotations[corev1.MirrorPodAnnotationKey], " ", p.Status.PodIPs)
		cond := readyCondition(p)
		ready[name] = fmt.Sprint(cond.Status, " since ", cond.LastTransitionTime.UTC())
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
			p.Status.EphemeralContainerStatuses) {
			state["status "+name+"/"+s.Name] = fmt.Sprintf("%s %d restarts", s.ContainerID, s.RestartCount)
		}
	}
	return state, ready
}

func isCanary(name string) bool { return strings.HasPrefix(name, "canary-") }
