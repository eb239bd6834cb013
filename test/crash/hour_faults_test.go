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

// trouble is a fault.
type trouble struct {
	kind string
	// begin brings it about and returns how it is let go, which reports whether it
	// has struck. nil: it cannot be brought about just now.
	begin func(h *hour) (letGo func() bool)
}

var troubles = []trouble{
	{"none, for comparison", func(*hour) func() bool { return always }},
	{"containerd killed", (*hour).killRuntime},
	{"containerd stands still", (*hour).stopRuntime},
	{"a pod's shim killed", (*hour).killShim},
	{"a container killed", (*hour).killContainer},
	{"a CNI plugin hangs", (*hour).holdNetwork},
	{"no network configuration", (*hour).takeNetwork},
	{"the state's disk full", (*hour).fillState},
	{"rubbish among the manifests", (*hour).rubbish},
	{"a call's answer lost", func(h *hour) func() bool { return h.spoil(cut) }},
	{"calls fail", func(h *hour) func() bool { return h.spoil(fail) }},
	{"a call hangs", func(h *hour) func() bool { return h.spoil(hang) }},
}

func always() bool { return true }

// strike brings a fault about, the next of the deck if it is none, goes on changing
// what is wanted, lets it go, and waits until all is as it is wanted.
func (h *hour) strike(t trouble) {
	h.Helper()
	letGo := func() bool { return false }
	if t.begin != nil {
		letGo = t.begin(h)
	}
	for letGo == nil || t.begin == nil {
		if len(h.deck) == 0 {
			h.deck = h.rand.Perm(len(troubles))
		}
		t, h.deck = troubles[h.deck[0]], h.deck[1:]
		letGo = t.begin(h)
	}
	at, hold := h.since(), time.Duration(h.rand.ExpFloat64()*float64(h.patience()))
	for end := time.Now().Add(min(hold, 3*h.patience())); ; {
		h.step()
		h.breathe()
		if time.Now().After(end) {
			break
		}
	}
	struck := letGo()
	held, free := h.since()-at, time.Now()
	h.settled("all to be as it is wanted after: " + t.kind)
	if struck {
		h.log.struck = append(h.log.struck, blow{kind: t.kind, at: at, held: held, recovery: time.Since(free)})
		h.Logf("%s %s for %s, recovered in %s", at.Round(time.Second), t.kind, held.Round(time.Millisecond), time.Since(free).Round(time.Millisecond))
	}
}

// patience is how long a fault lasts on average.
func (h *hour) patience() time.Duration {
	if h.length < 5*time.Minute {
		return time.Second
	}
	return 4 * time.Second
}

// killAgent ends the agent's first life. The runtime's calls go through a proxy in
// the second.
func (h *hour) killAgent() func() bool {
	h.kill()
	return func() bool {
		h.noDoubles()
		h.proxy = newProxy(h.T, h.host.Endpoint)
		h.agent.Args = append(h.agent.Args, "--container-runtime-endpoint", h.proxy.endpoint)
		h.life++
		h.launch()
		return true
	}
}

func (h *hour) killRuntime() func() bool {
	h.must("kill containerd", h.host.Kill())
	return func() bool {
		h.must("start containerd", h.host.Restart(h.Context()))
		return true
	}
}

// stopRuntime has containerd answer nobody: it lives, and its socket takes calls.
func (h *hour) stopRuntime() func() bool {
	pid := h.host.Pid()
	h.must("stop containerd", unix.Kill(pid, unix.SIGSTOP))
	return func() bool {
		h.must("let containerd go on", unix.Kill(pid, unix.SIGCONT))
		return true
	}
}

// struckPod chooses a pod that may be struck: one that serves, as it is wanted now.
func (h *hour) struckPod() (w *wish, p corev1.Pod) {
	pods := h.pods()
	names := slices.Sorted(maps.Keys(h.wants))
	names = slices.DeleteFunc(names, func(name string) bool {
		p, ok := pods[name]
		return !ok || h.wants[name].fate > exposed || h.wants[name].amiss(&p) != ""
	})
	if len(names) == 0 {
		return nil, p
	}
	w = h.wants[names[h.rand.IntN(len(names))]]
	h.excuse(w)
	return w, pods[w.name]
}

// wasStruck has a pod tell of one restart more.
func (w *wish) wasStruck(p *corev1.Pod) {
	w.restarts = p.Status.ContainerStatuses[0].RestartCount + 1
}

func (h *hour) killShim() func() bool {
	w, p := h.struckPod()
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
	w.wasStruck(&p)
	return always
}

// killContainer kills a container's first process from outside.
func (h *hour) killContainer() func() bool {
	w, p := h.struckPod()
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
	if pid <= 1 || !h.runs(pid) || unix.Kill(pid, unix.SIGKILL) != nil {
		return nil // likewise
	}
	w.wasStruck(&p)
	return always
}

// runs reports whether a process is one of the host's.
func (h *hour) runs(pid int) bool {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(groups), h.host.CgroupRoot+"/")
}

// holdNetwork has the plugins of a new pod hang.
func (h *hour) holdNetwork() func() bool {
	name := fmt.Sprintf("held-%d", h.log.came+1)
	release, err := h.host.BlockCNI(name)
	h.must("hold the plugins", err)
	h.create(name, serves)
	return func() bool {
		h.must("let the plugins go", release())
		return true
	}
}

func (h *hour) takeNetwork() func() bool {
	h.must("remove the network", h.host.RemoveCNI())
	return func() bool {
		h.must("write the network", h.host.WriteCNI())
		return true
	}
}

func (h *hour) fillState() func() bool {
	ballast := fill(h.T, h.agent.StateDir)
	return func() bool {
		h.must("make room", os.Remove(ballast))
		return true
	}
}

// rubbish lies in the folder of manifests for a while.
func (h *hour) rubbish() func() bool {
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

// spoil has a call fare badly, a few times unless it hangs: one that makes, starts,
// stops or removes. Of the pods that nobody touches there is no such call.
func (h *hour) spoil(f fault) func() bool {
	if h.proxy == nil {
		return nil
	}
	verbs := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"}
	times := 1
	if f != hang {
		times = 1 + h.rand.IntN(3)
	}
	h.proxy.set(&rule{verb: verbs[h.rand.IntN(len(verbs))], fault: f, times: times})
	return func() bool {
		hit := h.proxy.hit() > 0
		h.proxy.set()
		return hit
	}
}
