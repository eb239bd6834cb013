package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/node"
	"berth/test/hosts"
)

// smallDisk configures a node with a nodefs of 64 MiB, of which half must be available.
var smallDisk = nodeOptions{CNI: true, Nodefs: "size=64m", Config: map[string]any{
	"evictionHard":                     map[string]string{"nodefs.available": "50%", "memory.available": "100Mi"},
	"evictionPressureTransitionPeriod": "10s",
}}

// fillDisk writes a file of mib MiB to the nodefs. remove removes it.
func (s *Namespace) fillDisk(mib int) (remove func()) {
	s.t.Helper()
	file := filepath.Join(s.Agent.RootDir, "ballast")
	if err := os.WriteFile(file, make([]byte, mib<<20), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Error(err)
		}
	}
}

// waitPressure waits until a pressure condition of the node is true or false.
func (s *Namespace) waitPressure(condition string, under bool) {
	s.t.Helper()
	want := 0.0
	if under {
		want = 1
	}
	err := hosts.WaitFor(s.t.Context(), condition, func() (bool, error) {
		return s.metric(`berth_node_pressure{condition="`+condition+`"}`) == want, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestDiskPressureIsReportedAndNewPodsWait fills a small nodefs.
func TestDiskPressureIsReportedAndNewPodsWait(t *testing.T) {
	forEachNewNode(t, smallDisk, func(t *testing.T, s *Namespace) {
		s.waitPressure("DiskPressure", false)
		remove := s.fillDisk(33)
		s.waitPressure("DiskPressure", true)
		s.waitPressure("MemoryPressure", false)
		if n := s.metric(`berth_eviction_signal_available{signal="nodefs.available"}`); n <= 0 || n >= 32<<20 {
			t.Errorf("nodefs.available: got %v bytes, want less than 32Mi", n)
		}
		if out, _ := s.Try("check"); !strings.Contains(out, "DiskPressure") ||
			!strings.Contains(out, "nodefs.available is ") {
			t.Errorf("berth check: got\n%s", out)
		}
		if out := s.Berth("ps"); !strings.Contains(out, "DiskPressure") || !strings.Contains(out, "less than 32Mi") {
			t.Errorf("berth ps: got\n%s", out)
		}
		s.Pod("late", "containers:\n"+box("c", "", "sleep"))
		s.Pod("critical", "priorityClassName: system-node-critical\ncontainers:\n"+box("c", "", "sleep"))
		s.Running("critical")
		if out := s.Berth("why", "-n", s.ns, "late"); !strings.Contains(out, "The node had condition: [DiskPressure]") {
			t.Errorf("berth why: got\n%s", out)
		}
		if p := s.Get("late"); p == nil || p.Status.Phase != corev1.PodPending {
			t.Errorf("pod is not pending: %s", brief(p))
		}
		remove()
		s.waitPressure("DiskPressure", false)
		s.Running("late")
	})
}

// checkEvicted waits until a pod is evicted, and checks its status, event and metric.
func (s *Namespace) checkEvicted(name, signal, message string) {
	s.t.Helper()
	p := s.Phase(name, corev1.PodFailed)
	if !regexp.MustCompile(message).MatchString(p.Status.Message) || p.Status.Reason != "Evicted" ||
		condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
		s.t.Errorf("reason %q, message %q: %s", p.Status.Reason, p.Status.Message, brief(p))
	}
	event := s.Event(name, "Evicted: The node was low on resource: ")
	for _, want := range []string{signal + " is ", "Eviction ranking: 1. " + s.ns + "/" + name + ": uses ",
		"; 2. " + s.ns + "/"} {
		if !strings.Contains(event, want) {
			s.t.Errorf("event does not contain %q:\n%s", want, event)
		}
	}
	s.waitMetric(`kubelet_evictions{eviction_signal="`+signal+`"}`, equals(1))
}

// TestScenario28_DiskPressureEvictsRightPod fills a small nodefs with three pods. The pod that uses most
// is evicted, and its disk space is freed.
func TestScenario28_DiskPressureEvictsRightPod(t *testing.T) {
	forEachNewNode(t, smallDisk, func(t *testing.T, s *Namespace) {
		createPod := func(name, more string, mib int) {
			s.Pod(name, more+"volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				box("fills", "volumeMounts: [{name: data, mountPath: /data}]", fmt.Sprintf("fill /data/x %d", mib), end,
					"sleep"))
			s.WaitOutput(name, "fills")
		}
		createPod("small", "", 5)
		createPod("critical", "priorityClassName: system-node-critical\n", 10)
		small := s.Running("small")
		s.Running("critical")
		createPod("big", "", 22)
		s.checkEvicted("big", "nodefs.available",
			`^The node was low on resource: ephemeral-storage\. Threshold quantity: 32Mi, available: \d+[KM]i\. `+
				`(Container fills was using .*, request is 0, has larger consumption of ephemeral-storage\. )?$`)
		s.waitPressure("DiskPressure", false)
		if p := s.Running("small"); p.UID != small.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
		s.Running("critical")
		s.Pod("next", "containers:\n"+box("c", "", "sleep"))
		s.Running("next")
	})
}

// TestScenario27_MemoryPressureEvictsRightPod gives all pods together 256 MiB, of which 100 MiB must be
// available. The pod that exceeds its request most is evicted, and no process is OOM killed.
func TestScenario27_MemoryPressureEvictsRightPod(t *testing.T) {
	memory, err := node.ReadMemory()
	if err != nil {
		t.Fatal(err)
	}
	o := nodeOptions{CNI: true, Config: map[string]any{
		"systemReserved":                   map[string]string{"memory": strconv.FormatUint(memory.Total-256<<20, 10)},
		"evictionHard":                     map[string]string{"allocatableMemory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "10s",
	}}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		createPod := func(name, request string, mib int) {
			s.Pod(name, "containers:\n"+box("takes", "resources: {requests: {memory: "+request+"}}",
				fmt.Sprintf("alloc %d", mib), end, "sleep"))
		}
		createPod("requests", "60Mi", 50)
		createPod("modest", "5Mi", 15)
		s.WaitOutput("requests", "takes")
		s.WaitOutput("modest", "takes")
		createPod("hog", "20Mi", 110)
		s.checkEvicted("hog", "allocatableMemory.available",
			`^The node was low on resource: memory\. Threshold quantity: 100Mi, available: \d+[KM]i\. Container `+
				`takes was using \d+[KM]i, request is 20Mi, has larger consumption of memory\. $`)
		s.waitPressure("MemoryPressure", false)
		for _, name := range []string{"requests", "modest"} {
			if p := s.Running(name); p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("container was restarted: %s", brief(p))
			}
		}
	})
}

// TestScenario28_EachSignalEvictsLargestUser covers the signals other than nodefs.available: inodes,
// imagefs, containerfs and PIDs. In each case one pod uses little and one uses much. The second is
// evicted.
func TestScenario28_EachSignalEvictsLargestUser(t *testing.T) {
	t.Parallel()
	_, maxProcesses := node.Processes()
	const rootfs, volume = "", "volumes: [{name: data, emptyDir: {}}]\n"
	for _, row := range []struct {
		signal, condition, threshold string
		node                         nodeOptions
		pod                          string
		little, much                 string // the steps of the two pods
	}{
		{"nodefs.inodesFree", "DiskPressure", "50%", nodeOptions{Nodefs: "size=64m,nr_inodes=8000"}, volume,
			"files /data 100", "files /data 5000"},
		{"imagefs.available", "DiskPressure", "50%", nodeOptions{Disk: "size=256m"}, rootfs, "fill /x 2",
			"fill /x 140"},
		{"imagefs.inodesFree", "DiskPressure", "50%", nodeOptions{Disk: "size=256m,nr_inodes=16000"}, rootfs,
			"files /many 100", "files /many 9000"},
		// containerd stores the writable layers on the file system of the images.
		{"containerfs.available", "DiskPressure", "50%", nodeOptions{Disk: "size=256m"}, rootfs, "fill /x 2",
			"fill /x 140"},
		{"containerfs.inodesFree", "DiskPressure", "50%", nodeOptions{Disk: "size=256m,nr_inodes=16000"}, rootfs,
			"files /many 100", "files /many 9000"},
		// The limit depends on the machine. Other tests use a few thousand processes at most.
		{"pid.available", "PIDPressure", strconv.FormatInt(maxProcesses-10000, 10), nodeOptions{}, rootfs, "threads 10",
			"threads 12000"},
	} {
		o := row.node
		o.CNI = true
		o.Config = map[string]any{"evictionHard": map[string]string{row.signal: row.threshold},
			"evictionPressureTransitionPeriod": "5s"}
		t.Run(row.signal, func(t *testing.T) {
			body := func(t *testing.T, s *Namespace) {
				createPod := func(name, what string) {
					more := ""
					if row.pod == volume {
						more = "volumeMounts: [{name: data, mountPath: /data}]"
					}
					s.Pod(name, row.pod+"containers:\n"+box("takes", more, what, end, "sleep"))
				}
				createPod("little", row.little)
				little := s.Running("little")
				s.waitPressure(row.condition, false)
				createPod("much", row.much)
				s.checkEvicted("much", row.signal, `^The node was low on resource: .+\. Threshold quantity: .+, `+
					`available: .+\. `)
				s.waitPressure(row.condition, false)
				if p := s.Running("little"); p.UID != little.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("pod was replaced or restarted: %s", brief(p))
				}
			}
			if row.signal == "pid.available" { // a signal of the machine, which parallel nodes would share
				t.Parallel()
				body(t, newNode(t, hosts.Version2, o))
				return
			}
			forEachNewNode(t, o, body)
		})
	}
}
