package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/checkpoint"
	"berth/agent/ownership"
	"berth/test/hosts"
	"berth/volumes"
)

// init lets checkpoint.Open execute this program again to check a store.
func init() { checkpoint.RunCheckProcess() }

// TestScenario39_KubeletAndBerthTakeTurns runs pods of many kinds under the real kubelet, starts berth on the
// same directories, hands the pods back, and repeats it. berth is killed in the middle of each of its turns.
// No container restarts, no address or PID changes, no pod loses readiness.
func TestScenario39_KubeletAndBerthTakeTurns(t *testing.T) {
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("builds the kubelet: make torture PKGS=./test/pair RUN=Scenario39")
	}
	kubelet, err := hosts.BuildKubelet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			h := &handover{Pair: startPair(t, pairOptions{Version: v}), program: kubelet}
			h.must("stop berth", h.Agent.Stop(t.Context()))
			h.releaseAll()
			h.takeTurns()
		})
	}
}

// handover is a node on which the kubelet and berth take turns.
type handover struct {
	*Pair
	program string
	kubelet *hosts.Kubelet
	before  map[string]string
}

func (h *handover) must(what string, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
}

func (h *handover) takeTurns() {
	t := h.t
	h.startKubelet()
	h.Apply(t, handoverPods(h.Node))
	h.must("write a static pod", os.WriteFile(filepath.Join(h.Agent.ManifestDir, "static.yaml"),
		[]byte(staticPod), 0o600))
	h.waitPods("all pods to be ready with the kubelet")
	h.startSpecialCases()
	h.before = h.state()
	if len(h.before) < 3*handoverPodCount {
		t.Fatalf("the state before has only %d entries: %v", len(h.before), h.before)
	}
	h.must("stop the kubelet", h.kubelet.Stop())
	h.startKubelet()
	h.waitCanary("restart")
	h.compare("a restart of the kubelet")
	for turn := range 3 {
		h.must("stop the kubelet", h.kubelet.Stop())
		lostReadiness := h.watchReadiness()
		h.must("start berth", h.Agent.Start(t.Context()))
		h.must("wait for berth", h.Agent.WaitReady(t.Context()))
		h.waitAdopted()
		h.must("kill berth", h.Agent.Kill9())
		h.must("start berth again", h.Agent.Start(t.Context()))
		h.must("wait for berth", h.Agent.WaitReady(t.Context()))
		h.waitAdopted()
		h.waitPods(fmt.Sprintf("all pods to be ready with berth in turn %d", turn))
		h.waitCanary(fmt.Sprintf("berth-%d", turn))
		h.checkWorks()
		h.compare(fmt.Sprintf("berth in turn %d", turn))
		h.must("stop berth", h.Agent.Stop(t.Context()))
		for _, name := range lostReadiness() {
			t.Errorf("berth in turn %d: pod %s was ready and became unready", turn, name)
		}
		h.releaseAll()
		h.startKubelet()
		h.waitPods(fmt.Sprintf("all pods to be ready with the kubelet in turn %d", turn))
		h.waitCanary(fmt.Sprintf("kubelet-%d", turn))
		h.compare(fmt.Sprintf("the kubelet in turn %d", turn))
	}
	h.must("stop the kubelet", h.kubelet.Stop())
	h.must("start berth", h.Agent.Start(t.Context()))
	h.must("wait for berth", h.Agent.WaitReady(t.Context()))
	h.waitAdopted()
	h.waitCanary("end")
	h.checkLog()
	h.must("remove the static pod", os.Remove(filepath.Join(h.Agent.ManifestDir, "static.yaml")))
	h.Kubectl(t, "delete", "pods", "--all", "--grace-period=1", "--wait=false")
	h.waitFor("all pods to be deleted by berth", func() bool {
		list, err := h.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		sandboxes, err2 := h.Host.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		return err == nil && err2 == nil && len(list.Items)+len(sandboxes.Items) == 0
	})
}

func (h *handover) startKubelet() {
	h.t.Helper()
	var ports [2]int
	for i := range ports {
		var err error
		ports[i], err = hosts.FreePort()
		h.must("find a port", err)
	}
	k, err := hosts.StartKubelet(h.program, h.Agent, h.Node, h.Kubeconfig, ports)
	h.must("start the kubelet", err)
	h.kubelet = k
	h.t.Cleanup(func() {
		_ = k.Stop()
		if h.t.Failed() {
			h.t.Logf("kubelet:\n%s", k.Log())
		}
	})
}

// releaseAll hands all pods over to the kubelet.
func (h *handover) releaseAll() {
	h.t.Helper()
	store, _, err := checkpoint.Open(checkpoint.Options{Path: filepath.Join(h.Agent.StateDir, "berth.db")})
	h.must("open the store", err)
	records, err := store.Load()
	h.must("load the store", err)
	v := &volumes.Volumes{Options: volumes.Options{RootDir: h.Agent.RootDir}}
	_, err = ownership.Release(h.t.Context(), store, v, slices.Collect(maps.Keys(records))...)
	h.must("release the pods", err)
	h.must("close the store", store.Close())
}

// waitFor waits until a condition holds, and shows the state if it does not.
func (h *handover) waitFor(what string, cond func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	if err := hosts.WaitFor(ctx, what, func() (bool, error) { return cond(), nil }); err != nil {
		out, _ := h.TryKubectl(h.t, "", "get", "pods", "-o", "wide")
		h.t.Fatalf("%v\n%s\nberth:\n%s", err, out, h.Agent.Log())
	}
}

// startSpecialCases starts an ephemeral container and the termination of a pod, which lasts longer than the test.
func (h *handover) startSpecialCases() {
	t := h.t
	t.Helper()
	h.Kubectl(t, "debug", "volumes", "--image=docker.io/library/busybox:1.36", "--target=c", "--container=debugger",
		"--profile=general", "--", "sleep", "1000000")
	h.waitFor("the ephemeral container to run", func() bool {
		p, err := h.Client.CoreV1().Pods("default").Get(t.Context(), "volumes", metav1.GetOptions{})
		return err == nil && len(p.Status.EphemeralContainerStatuses) == 1 &&
			p.Status.EphemeralContainerStatuses[0].State.Running != nil
	})
	h.Kubectl(t, "delete", "pod", "terminating", "--wait=false")
}

// checkLog checks that no line of a log is missing.
func (h *handover) checkLog() {
	h.t.Helper()
	lines := strings.Fields(h.Kubectl(h.t, "logs", "counter"))
	for i, line := range lines {
		if line != fmt.Sprint(i) {
			h.t.Errorf("line %d of the log of counter: got %q", i, line)
			break
		}
	}
	if len(lines) < 10 {
		h.t.Errorf("the log of counter has only %d lines", len(lines))
	}
}

// waitPods waits until each pod is ready, apart from those of notReady. The container of the crash looping one has
// started again, and the image of the pulling one is missing.
func (h *handover) waitPods(what string) {
	h.t.Helper()
	h.waitFor(what, func() bool {
		list, err := h.Client.CoreV1().Pods("default").List(h.t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) < handoverPodCount {
			return false
		}
		return !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
			status := p.Status.ContainerStatuses
			switch p.Name {
			case "crashing":
				return len(status) == 0 || status[0].RestartCount == 0
			case "pulling":
				return len(status) == 0 || status[0].State.Waiting == nil ||
					status[0].State.Waiting.Reason == "ContainerCreating"
			case "terminating":
				return len(status) == 0 || status[0].State.Running == nil
			}
			return !podReady(&p)
		})
	})
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waitAdopted waits until each pod of the node has the mark of berth.
func (h *handover) waitAdopted() {
	h.t.Helper()
	h.waitFor("berth to adopt all pods", func() bool {
		_, foreign, err := volumes.ListPods(h.t.Context(), h.Agent.RootDir)
		return err == nil && len(foreign) == 0
	})
}

// state returns what must not change: containers with their PIDs and attempts, addresses, restart counts and UIDs.
// The crash looping pod has only its sandbox and its addresses.
func (h *handover) state() map[string]string {
	h.t.Helper()
	ctx, out := h.t.Context(), map[string]string{}
	sandboxes, err := h.Host.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	h.must("list sandboxes", err)
	for _, s := range sandboxes.Items {
		out["sandbox "+s.Metadata.Name+" "+s.Id] = s.State.String()
	}
	list, err := h.Host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	h.must("list containers", err)
	for _, c := range list.Containers {
		if c.Labels["io.kubernetes.pod.name"] == "crashing" || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		status, err := h.Host.Runtime.ContainerStatus(ctx,
			&runtimeapi.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		h.must("get a container", err)
		var info struct{ PID int }
		h.must("decode a container", json.Unmarshal([]byte(status.Info["info"]), &info))
		out["container "+c.Labels["io.kubernetes.pod.name"]+"/"+c.Metadata.Name+" "+c.Id] =
			fmt.Sprintf("pid %d attempt %d", info.PID, c.Metadata.Attempt)
	}
	pods, err := h.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	h.must("list pods", err)
	for i := range pods.Items {
		p := &pods.Items[i]
		out["pod "+p.Name] = fmt.Sprint(p.UID, " ", p.Status.PodIPs)
		if p.Name == "crashing" {
			continue
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
			p.Status.EphemeralContainerStatuses) {
			out["status "+p.Name+"/"+c.Name] = fmt.Sprintf("%s restarts %d", c.ContainerID, c.RestartCount)
		}
	}
	return out
}

// compare compares the state with that before, apart from new canaries.
// The next comparison is with the present state.
func (h *handover) compare(who string) {
	h.t.Helper()
	now := h.state()
	for what, was := range h.before {
		if is, ok := now[what]; !ok || is != was {
			h.t.Errorf("%s: %s: got %q, was %q", who, what, is, was)
		}
	}
	for what := range now {
		if _, was := h.before[what]; !was && !strings.Contains(what, "canary") {
			h.t.Errorf("%s: %s is new", who, what)
		}
	}
	h.before = now
}

// watchReadiness watches the pods. The returned function stops that and returns the names of the pods that were ready
// and became unready. The kubelet runs startup probes again when it starts, so that only berth is watched.
func (h *handover) watchReadiness() (lost func() []string) {
	h.t.Helper()
	pods := h.Client.CoreV1().Pods("default")
	list, err := pods.List(h.t.Context(), metav1.ListOptions{})
	h.must("list pods", err)
	ready := map[string]bool{}
	for i := range list.Items {
		ready[list.Items[i].Name] = podReady(&list.Items[i])
	}
	w, err := pods.Watch(h.t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	h.must("watch pods", err)
	var names []string
	var done sync.WaitGroup
	var stopped atomic.Bool // stopping a watch can end it with an error
	done.Go(func() {
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				if !stopped.Load() { // the watch no longer shows changes
					names = append(names, fmt.Sprintf("unknown after watch error %v", e.Object))
				}
				return
			}
			if now := podReady(p); !notReady[p.Name] && ready[p.Name] != now {
				if ready[p.Name] = now; !now {
					names = append(names, p.Name)
				}
			}
		}
	})
	return func() []string {
		stopped.Store(true)
		w.Stop()
		done.Wait()
		if len(ready) < handoverPodCount {
			h.t.Errorf("only %d pods were watched", len(ready))
		}
		return names
	}
}

// waitCanary starts a pod and waits until it is ready: the agent that runs has handled all older pods. The pod
// remains, so that pods of both agents are handed over.
func (h *handover) waitCanary(name string) {
	h.t.Helper()
	h.Apply(h.t, strings.NewReplacer("NODE", h.Node, "NAME", "canary-"+name).Replace(canaryPod))
	h.waitFor("pod canary-"+name+" to be ready", func() bool {
		p, err := h.Client.CoreV1().Pods("default").Get(h.t.Context(), "canary-"+name, metav1.GetOptions{})
		return err == nil && podReady(p)
	})
}

// checkWorks checks with berth that logs and exec of adopted pods work.
func (h *handover) checkWorks() {
	h.t.Helper()
	if out := h.Kubectl(h.t, "logs", "volumes"); !strings.Contains(out, "started") {
		h.t.Errorf("logs of an adopted pod: got %q", out)
	}
	if out := h.Kubectl(h.t, "exec", "volumes", "--", "cat", "/data/file"); !strings.Contains(out, "kept") {
		h.t.Errorf("exec in an adopted pod: got %q", out)
	}
}
