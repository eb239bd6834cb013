package crash

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// faultKind is a kind of fault that TestLongChurn injects.
type faultKind struct {
	kind string
	// inject injects the fault. It returns nil if this is not possible at the moment. Otherwise, revert
	// removes the fault and reports whether it took effect.
	inject func(h *longChurn) (revert func() bool)
}

var faultKinds = []faultKind{
	{"none (baseline)", func(*longChurn) func() bool { return always }},
	{"containerd killed", (*longChurn).killRuntime},
	{"containerd stopped by SIGSTOP", (*longChurn).stopRuntime},
	{"shim killed", (*longChurn).killShim},
	{"container killed", (*longChurn).killContainer},
	{"CNI plugin hangs", (*longChurn).blockNetwork},
	{"no CNI configuration", (*longChurn).removeNetwork},
	{"state disk full", (*longChurn).fillState},
	{"invalid manifests", (*longChurn).addInvalidManifests},
	{"CRI response lost", func(h *longChurn) func() bool { return h.injectCallFault(dropResponse) }},
	{"CRI calls fail", func(h *longChurn) func() bool { return h.injectCallFault(fail) }},
	{"CRI call hangs", func(h *longChurn) func() bool { return h.injectCallFault(hang) }},
}

func always() bool { return true }

// injectFault injects a fault, continues to change pods, reverts the fault and waits until all pods are in
// their desired state. Without an inject function, it takes the next kind of a random permutation.
func (h *longChurn) injectFault(t faultKind) {
	h.Helper()
	revert := func() bool { return false }
	if t.inject != nil {
		revert = t.inject(h)
	}
	for revert == nil || t.inject == nil {
		if len(h.pendingFaults) == 0 {
			h.pendingFaults = h.rand.Perm(len(faultKinds))
		}
		t, h.pendingFaults = faultKinds[h.pendingFaults[0]], h.pendingFaults[1:]
		revert = t.inject(h)
	}
	at, randomDuration := h.elapsed(), time.Duration(h.rand.ExpFloat64()*float64(h.faultDuration()))
	for end := time.Now().Add(min(randomDuration, 3*h.faultDuration())); ; {
		h.step()
		h.randomSleep()
		if time.Now().After(end) {
			break
		}
	}
	applied := revert()
	duration, reverted := h.elapsed()-at, time.Now()
	h.waitSettled("all pods to reach their desired state after: " + t.kind)
	if applied {
		h.log.faults = append(h.log.faults, faultRecord{kind: t.kind, at: at, duration: duration,
			recovery: time.Since(reverted)})
		h.Logf("%s %s for %s, recovered in %s", at.Round(time.Second), t.kind, duration.Round(time.Millisecond),
			time.Since(reverted).Round(time.Millisecond))
	}
}

// faultDuration returns the average duration of a fault.
func (h *longChurn) faultDuration() time.Duration {
	if h.duration < 5*time.Minute {
		return time.Second
	}
	return 4 * time.Second
}

// killAgent kills the agent. In its second run, the agent reaches the runtime through a proxy.
func (h *longChurn) killAgent() func() bool {
	h.kill()
	return func() bool {
		h.checkNoDuplicates()
		h.proxy = newProxy(h.T, h.host.Endpoint)
		h.agent.Args = append(h.agent.Args, "--container-runtime-endpoint", h.proxy.endpoint)
		h.agentRun++
		h.launch()
		return true
	}
}

func (h *longChurn) killRuntime() func() bool {
	h.must("kill containerd", h.host.Kill())
	return func() bool {
		h.must("start containerd", h.host.Restart(h.Context()))
		return true
	}
}

// stopRuntime stops the process of containerd. Its socket still accepts connections.
func (h *longChurn) stopRuntime() func() bool {
	pid := h.host.Pid()
	h.must("stop containerd", unix.Kill(pid, unix.SIGSTOP))
	return func() bool {
		h.must("continue containerd", unix.Kill(pid, unix.SIGCONT))
		return true
	}
}

// pickVictim returns a random pod that runs and is in its desired state. Its containers may restart from
// now on. w is nil if there is none.
func (h *longChurn) pickVictim() (w *desiredPod, p corev1.Pod) {
	pods := h.pods()
	names := slices.Sorted(maps.Keys(h.desired))
	names = slices.DeleteFunc(names, func(name string) bool {
		p, ok := pods[name]
		return !ok || h.desired[name].behavior > hostPort || h.desired[name].mismatch(&p) != ""
	})
	if len(names) == 0 {
		return nil, p
	}
	w = h.desired[names[h.rand.IntN(len(names))]]
	h.allowRestart(w)
	return w, pods[w.name]
}

// expectRestart makes one more restart part of the pod's desired state.
func (w *desiredPod) expectRestart(p *corev1.Pod) {
	w.restarts = p.Status.ContainerStatuses[0].RestartCount + 1
}

func (h *longChurn) killShim() func() bool {
	w, p := h.pickVictim()
	if w == nil {
		return nil
	}
	killed := false
	for _, s := range h.sandboxes(w.name) {
		if s.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			continue
		}
		for _, pid := range h.shims(s.Id) {
			err := unix.Kill(pid, unix.SIGKILL)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				h.Fatalf("kill a shim: %v", err)
			}
			killed = killed || err == nil
		}
	}
	if !killed {
		return nil
	}
	w.expectRestart(&p)
	return always
}

// killContainer kills the init process of a container from the host.
func (h *longChurn) killContainer() func() bool {
	w, p := h.pickVictim()
	if w == nil {
		return nil
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	st, err := h.host.Runtime.ContainerStatus(h.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id,
		Verbose: true})
	if err != nil {
		return nil // an image edit has replaced the container
	}
	_, rest, _ := strings.Cut(st.Info["info"], `"pid":`)
	digits, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(strings.TrimSpace(digits))
	h.must("parse the container PID", err)
	if pid <= 1 || !h.isHostProcess(pid) || unix.Kill(pid, unix.SIGKILL) != nil {
		return nil // the container has exited
	}
	w.expectRestart(&p)
	return always
}

// isHostProcess reports whether a process belongs to a cgroup of the test host.
func (h *longChurn) isHostProcess(pid int) bool {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(groups), h.host.CgroupRoot+"/")
}

// blockNetwork creates a pod whose CNI plugins hang.
func (h *longChurn) blockNetwork() func() bool {
	name := fmt.Sprintf("blocked-%d", h.log.created+1)
	release, err := h.host.BlockCNI(name)
	h.must("block the CNI plugins", err)
	h.create(name, serving)
	return func() bool {
		h.must("release the CNI plugins", release())
		return true
	}
}

func (h *longChurn) removeNetwork() func() bool {
	h.must("remove the CNI configuration", h.host.RemoveCNI())
	return func() bool {
		h.must("write the CNI configuration", h.host.WriteCNI())
		return true
	}
}

func (h *longChurn) fillState() func() bool {
	filler := fillDisk(h.T, h.agent.StateDir)
	return func() bool {
		h.must("free disk space", os.Remove(filler))
		return true
	}
}

// addInvalidManifests creates invalid files in the manifest directory.
func (h *longChurn) addInvalidManifests() func() bool {
	in := func(name string) string { return filepath.Join(h.agent.ManifestDir, name) }
	for name, text := range map[string]string{
		"invalid-text.yaml": "{{{ not: [yaml", "invalid-bytes.yaml": strings.Repeat("\x00\xff\x7f", 5000),
		"invalid-empty.yaml": "",
		"invalid-bare.yaml":  "apiVersion: v1\nkind: Pod\nmetadata: {name: bare}\nspec: {}\n",
		"invalid-kind.yaml":  "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: many}\n",
		"invalid-field.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: field}\n" +
			"spec: {containers: [{name: c, image: i, imagine: 1}]}\n",
		"invalid-huge.yaml": "a: " + strings.Repeat("x", 4<<20),
	} {
		h.must("write an invalid manifest", os.WriteFile(in(name), []byte(text), 0o644))
	}
	h.must("create a directory", os.Mkdir(in("invalid-directory.yaml"), 0o755))
	h.must("create a symbolic link", os.Symlink("nowhere", in("invalid-link.yaml")))
	h.must("create a named pipe", unix.Mkfifo(in("invalid-pipe.yaml"), 0o644))
	return func() bool {
		all, err := filepath.Glob(in("invalid-*"))
		h.must("list invalid manifests", err)
		for _, f := range all {
			h.must("remove an invalid manifest", os.Remove(f))
		}
		return len(all) > 0
	}
}

// injectCallFault injects a fault into the next calls of a random mutating CRI method: one call if the fault
// is hang, up to three otherwise. Such calls do not occur for stable pods.
func (h *longChurn) injectCallFault(f fault) func() bool {
	if h.proxy == nil {
		return nil
	}
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer",
		"StopPodSandbox", "RemovePodSandbox"}
	times := 1
	if f != hang {
		times = 1 + h.rand.IntN(3)
	}
	h.proxy.set(&rule{method: methods[h.rand.IntN(len(methods))], fault: f, times: times})
	return func() bool {
		hitCount := h.proxy.hitCount() > 0
		h.proxy.set()
		return hitCount
	}
}
