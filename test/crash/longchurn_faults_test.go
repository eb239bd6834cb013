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

// faultKind is a fault.
type faultKind struct {
	kind string
	// begin brings it about and returns how it is let go, which reports whether it
	// has struck. nil: it cannot be brought about just now.
	begin func(h *longChurn) (letGo func() bool)
}

var faultKinds = []faultKind{
	{"none, for comparison", func(*longChurn) func() bool { return always }},
	{"containerd killed", (*longChurn).killRuntime},
	{"containerd stands still", (*longChurn).stopRuntime},
	{"a pod's shim killed", (*longChurn).killShim},
	{"a container killed", (*longChurn).killContainer},
	{"a CNI plugin hangs", (*longChurn).blockNetwork},
	{"no network configuration", (*longChurn).removeNetwork},
	{"the state's disk full", (*longChurn).fillState},
	{"rubbish among the manifests", (*longChurn).addInvalidManifests},
	{"a call's answer lost", func(h *longChurn) func() bool { return h.injectCallFault(dropResponse) }},
	{"calls fail", func(h *longChurn) func() bool { return h.injectCallFault(fail) }},
	{"a call hangs", func(h *longChurn) func() bool { return h.injectCallFault(hang) }},
}

func always() bool { return true }

// injectFault brings a fault about, the next of the deck if it is none, goes on changing
// what is wanted, lets it go, and waits until all is as it is wanted.
func (h *longChurn) injectFault(t faultKind) {
	h.Helper()
	letGo := func() bool { return false }
	if t.begin != nil {
		letGo = t.begin(h)
	}
	for letGo == nil || t.begin == nil {
		if len(h.pendingFaults) == 0 {
			h.pendingFaults = h.rand.Perm(len(faultKinds))
		}
		t, h.pendingFaults = faultKinds[h.pendingFaults[0]], h.pendingFaults[1:]
		letGo = t.begin(h)
	}
	at, hold := h.elapsed(), time.Duration(h.rand.ExpFloat64()*float64(h.faultDuration()))
	for end := time.Now().Add(min(hold, 3*h.faultDuration())); ; {
		h.step()
		h.randomSleep()
		if time.Now().After(end) {
			break
		}
	}
	struck := letGo()
	held, free := h.elapsed()-at, time.Now()
	h.waitSettled("all to be as it is wanted after: " + t.kind)
	if struck {
		h.log.faults = append(h.log.faults, faultRecord{kind: t.kind, at: at, held: held, recovery: time.Since(free)})
		h.Logf("%s %s for %s, recovered in %s", at.Round(time.Second), t.kind, held.Round(time.Millisecond), time.Since(free).Round(time.Millisecond))
	}
}

// faultDuration is how long a fault lasts on average.
func (h *longChurn) faultDuration() time.Duration {
	if h.length < 5*time.Minute {
		return time.Second
	}
	return 4 * time.Second
}

// killAgent ends the agent's first life. The runtime's calls go through a proxy in
// the second.
func (h *longChurn) killAgent() func() bool {
	h.kill()
	return func() bool {
		h.checkNoDuplicates()
		h.proxy = newProxy(h.T, h.host.Endpoint)
		h.agent.Args = append(h.agent.Args, "--container-runtime-endpoint", h.proxy.endpoint)
		h.life++
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

// stopRuntime has containerd stop answering: it lives, and its socket takes calls.
func (h *longChurn) stopRuntime() func() bool {
	pid := h.host.Pid()
	h.must("stop containerd", unix.Kill(pid, unix.SIGSTOP))
	return func() bool {
		h.must("let containerd go on", unix.Kill(pid, unix.SIGCONT))
		return true
	}
}

// pickVictim chooses a pod that may be struck: one that serves, as it is wanted now.
func (h *longChurn) pickVictim() (w *desiredPod, p corev1.Pod) {
	pods := h.pods()
	names := slices.Sorted(maps.Keys(h.desired))
	names = slices.DeleteFunc(names, func(name string) bool {
		p, ok := pods[name]
		return !ok || h.desired[name].fate > exposed || h.desired[name].mismatch(&p) != ""
	})
	if len(names) == 0 {
		return nil, p
	}
	w = h.desired[names[h.rand.IntN(len(names))]]
	h.excuseRestart(w)
	return w, pods[w.name]
}

// expectRestart waits until a pod reports one more restart.
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

// killContainer kills a container's first process from outside.
func (h *longChurn) killContainer() func() bool {
	w, p := h.pickVictim()
	if w == nil {
		return nil
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	st, err := h.host.Runtime.ContainerStatus(h.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil // an edit of its image has replaced it
	}
	_, rest, _ := strings.Cut(st.Info["info"], `"pid":`)
	digits, _, _ := strings.Cut(rest, ",")
	pid, err := strconv.Atoi(strings.TrimSpace(digits))
	h.must("a container's process", err)
	if pid <= 1 || !h.isHostProcess(pid) || unix.Kill(pid, unix.SIGKILL) != nil {
		return nil // likewise
	}
	w.expectRestart(&p)
	return always
}

// isHostProcess reports whether a process is one of the host's.
func (h *longChurn) isHostProcess(pid int) bool {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(groups), h.host.CgroupRoot+"/")
}

// blockNetwork has the plugins of a new pod hang.
func (h *longChurn) blockNetwork() func() bool {
	name := fmt.Sprintf("held-%d", h.log.came+1)
	release, err := h.host.BlockCNI(name)
	h.must("hold the plugins", err)
	h.create(name, serves)
	return func() bool {
		h.must("let the plugins go", release())
		return true
	}
}

func (h *longChurn) removeNetwork() func() bool {
	h.must("remove the network", h.host.RemoveCNI())
	return func() bool {
		h.must("write the network", h.host.WriteCNI())
		return true
	}
}

func (h *longChurn) fillState() func() bool {
	ballast := fill(h.T, h.agent.StateDir)
	return func() bool {
		h.must("make room", os.Remove(ballast))
		return true
	}
}

// addInvalidManifests lies in the folder of manifests for a while.
func (h *longChurn) addInvalidManifests() func() bool {
	in := func(name string) string { return filepath.Join(h.agent.ManifestDir, name) }
	for name, text := range map[string]string{
		"rubbish-text.yaml": "{{{ not: [yaml", "rubbish-bytes.yaml": strings.Repeat("\x00\xff\x7f", 5000), "rubbish-empty.yaml": "",
		"rubbish-bare.yaml":  "apiVersion: v1\nkind: Pod\nmetadata: {name: bare}\nspec: {}\n",
		"rubbish-kind.yaml":  "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: many}\n",
		"rubbish-field.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: field}\nspec: {containers: [{name: c, image: i, imagine: 1}]}\n",
		"rubbish-huge.yaml":  "a: " + strings.Repeat("x", 4<<20),
	} {
		h.must("leave rubbish", os.WriteFile(in(name), []byte(text), 0o644))
	}
	h.must("leave a folder", os.Mkdir(in("rubbish-folder.yaml"), 0o755))
	h.must("leave a link", os.Symlink("nowhere", in("rubbish-link.yaml")))
	h.must("leave a pipe", unix.Mkfifo(in("rubbish-pipe.yaml"), 0o644))
	return func() bool {
		all, err := filepath.Glob(in("rubbish-*"))
		h.must("find the rubbish", err)
		for _, f := range all {
			h.must("take rubbish away", os.Remove(f))
		}
		return len(all) > 0
	}
}

// injectCallFault has a call fare badly, a few times unless it hangs: one that makes, starts,
// stops or removes. For untouched pods there is no such call.
func (h *longChurn) injectCallFault(f fault) func() bool {
	if h.proxy == nil {
		return nil
	}
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"}
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
