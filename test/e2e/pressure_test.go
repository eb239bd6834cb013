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

// shortOfDisk is a node whose pods' file system has 64 MiB, of which half must be free.
var smallDisk = nodeOptions{CNI: true, Nodefs: "size=64m", Config: map[string]any{
	"evictionHard":                     map[string]string{"nodefs.available": "50%", "memory.available": "100Mi"},
	"evictionPressureTransitionPeriod": "10s",
}}

// ballast takes disk from the node until it is removed.
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

// pressed waits until the node is under a pressure, or under it no more.
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

// TestDiskPressureIsReportedAndNewPodsWait fills a node's own small file system.
func TestDiskPressureIsReportedAndNewPodsWait(t *testing.T) {
	forEachNewNode(t, smallDisk, func(t *testing.T, s *Namespace) {
		s.waitPressure("DiskPressure", false)
		remove := s.fillDisk(33)
		s.waitPressure("DiskPressure", true)
		s.waitPressure("MemoryPressure", false)
		if n := s.metric(`berth_eviction_signal_available{signal="nodefs.available"}`); n <= 0 || n >= 32<<20 {
			t.Errorf("%v bytes are left", n)
		}
		if out, _ := s.Try("check"); !strings.Contains(out, "DiskPressure") || !strings.Contains(out, "nodefs.available is ") {
			t.Errorf("berth check says\n%s", out)
		}
		if out := s.Berth("ps"); !strings.Contains(out, "DiskPressure") || !strings.Contains(out, "less than 32Mi") {
			t.Errorf("berth ps says\n%s", out)
		}
		s.Pod("late", "containers:\n"+box("c", "", "sleep"))
		s.Pod("critical", "priorityClassName: system-node-critical\ncontainers:\n"+box("c", "", "sleep"))
		s.Running("critical")
		if out := s.Berth("why", "-n", s.ns, "late"); !strings.Contains(out, "The node had condition: [DiskPressure]") {
			t.Errorf("berth why says\n%s", out)
		}
		if p := s.Get("late"); p == nil || p.Status.Phase != corev1.PodPending {
			t.Errorf("the pod does not wait: %s", brief(p))
		}
		remove()
		s.waitPressure("DiskPressure", false)
		s.Running("late")
	})
}

// evicted waits until a pod has gone for want of something, and holds what users
// see of it against the figures.
func (s *Namespace) checkEvicted(name, signal, message string) {
	s.t.Helper()
	p := s.Phase(name, corev1.PodFailed)
	if !regexp.MustCompile(message).MatchString(p.Status.Message) || p.Status.Reason != "Evicted" || condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
		s.t.Errorf("reason %q, message %q: %s", p.Status.Reason, p.Status.Message, brief(p))
	}
	event := s.Event(name, "Evicted: The node was low on resource: ")
	for _, want := range []string{signal + " is ", "Eviction ranking: 1. " + s.ns + "/" + name + ": uses ", "; 2. " + s.ns + "/"} {
		if !strings.Contains(event, want) {
			s.t.Errorf("%q is not in the event\n%s", want, event)
		}
	}
	s.waitMetric(`kubelet_evictions{eviction_signal="`+signal+`"}`, equals(1))
}

// TestScenario28_DiskPressureEvictsRightPod has three pods fill a node's small file
// system: the one that has most goes, and its disk comes back.
func TestScenario28_DiskPressureEvictsRightPod(t *testing.T) {
	forEachNewNode(t, smallDisk, func(t *testing.T, s *Namespace) {
		createPod := func(name, more string, mib int) {
			s.Pod(name, more+"volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				box("fills", "volumeMounts: [{name: data, mountPath: /data}]", fmt.Sprintf("fill /data/x %d", mib), end, "sleep"))
			s.WaitOutput(name, "fills")
		}
		createPod("small", "", 5)
		createPod("critical", "priorityClassName: system-node-critical\n", 10)
		small := s.Running("small")
		s.Running("critical")
		createPod("big", "", 22)
		s.checkEvicted("big", "nodefs.available",
			`^The node was low on resource: ephemeral-storage\. Threshold quantity: 32Mi, available: \d+[KM]i\. (Container fills was using .*, request is 0, has larger consumption of ephemeral-storage\. )?$`)
		s.waitPressure("DiskPressure", false)
		if p := s.Running("small"); p.UID != small.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("not the same: %s", brief(p))
		}
		s.Running("critical")
		s.Pod("next", "containers:\n"+box("c", "", "sleep"))
		s.Running("next")
	})
}

// TestScenario27_MemoryPressureEvictsRightPod gives all pods together 256 MiB, of which
// 100 must be free: the pod goes that has most beyond its request, and no process is
// killed for want of memory.
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
			s.Pod(name, "containers:\n"+box("takes", "resources: {requests: {memory: "+request+"}}", fmt.Sprintf("alloc %d", mib), end, "sleep"))
		}
		createPod("asks", "60Mi", 50)
		createPod("modest", "5Mi", 15)
		s.WaitOutput("asks", "takes")
		s.WaitOutput("modest", "takes")
		createPod("hog", "20Mi", 110)
		s.checkEvicted("hog", "allocatableMemory.available",
			`^The node was low on resource: memory\. Threshold quantity: 100Mi, available: \d+[KM]i\. Container takes was using \d+[KM]i, request is 20Mi, has larger consumption of memory\. $`)
		s.waitPressure("MemoryPressure", false)
		for _, name := range []string{"asks", "modest"} {
			if p := s.Running(name); p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("it was killed: %s", brief(p))
			}
		}
	})
}

// TestScenario28_EachSignalEvictsLargestUser: beside bytes of the pods' own
// file system, inodes, the file system of images and containers, and processes.
// Each row has a pod that takes little and one that takes much; the second goes.
func TestScenario28_EachSignalEvictsLargestUser(t *testing.T) {
	t.Parallel()
	_, maxProcesses := node.Processes()
	const writableLayer, volume = "", "volumes: [{name: data, emptyDir: {}}]\n"
	for _, row := range []struct {
		signal, condition, threshold string
		node                         nodeOptions
		pod                          string
		little, much                 string // what the pods do
	}{
		{"nodefs.inodesFree", "DiskPressure", "50%", nodeOptions{Nodefs: "size=64m,nr_inodes=8000"}, volume, "files /data 100", "files /data 5000"},
		{"imagefs.available", "DiskPressure", "50%", nodeOptions{Disk: "size=256m"}, writableLayer, "fill /x 2", "fill /x 140"},
		{"imagefs.inodesFree", "DiskPressure", "50%", nodeOptions{Disk: "size=256m,nr_inodes=16000"}, writableLayer, "files /many 100", "files /many 9000"},
		// containerd keeps what containers write where it keeps images.
		{"containerfs.available", "DiskPressure", "50%", nodeOptions{Disk: "size=256m"}, writableLayer, "fill /x 2", "fill /x 140"},
		{"containerfs.inodesFree", "DiskPressure", "50%", nodeOptions{Disk: "size=256m,nr_inodes=16000"}, writableLayer, "files /many 100", "files /many 9000"},
		// The machine's own number differs; other tests take some thousands at most.
		{"pid.available", "PIDPressure", strconv.FormatInt(maxProcesses-10000, 10), nodeOptions{}, writableLayer, "threads 10", "threads 12000"},
	} {
		o := row.node
		o.CNI = true
		o.Config = map[string]any{"evictionHard": map[string]string{row.signal: row.threshold}, "evictionPressureTransitionPeriod": "5s"}
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
				s.checkEvicted("much", row.signal, `^The node was low on resource: .+\. Threshold quantity: .+, available: .+\. `)
				s.waitPressure(row.condition, false)
				if p := s.Running("little"); p.UID != little.UID || p.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("not the same: %s", brief(p))
				}
			}
			if row.signal == "pid.available" { // the machine's, which two nodes at once would share
				t.Parallel()
				body(t, newNode(t, hosts.Version2, o))
				return
			}
			forEachNewNode(t, o, body)
		})
	}
}
