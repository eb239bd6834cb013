package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// TestMain runs the command itself when a test has started this program as the command.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_UP_HOME") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestRunningContainerdIsUsedAndRestored runs make up CONTAINERD=unix://… and make down. The examples run in
// an existing containerd, and its other pods and images are unchanged afterwards.
func TestRunningContainerdIsUsedAndRestored(t *testing.T) {
	t.Parallel()
	versions := hosts.Versions()
	if os.Getenv("BERTH_TORTURE") == "" {
		versions = []hosts.Version{hosts.Version2} // with Services
	}
	for _, v := range versions {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			h, err := hosts.Start(t.Context(), hosts.Options{Version: v, CNI: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := h.Stop(); err != nil {
					t.Error(err)
				}
				if left := h.Leaks(); len(left) > 0 {
					t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
				}
			})
			q := &quickstart{T: t, host: h, home: filepath.Join(t.TempDir(), "home"), bin: t.TempDir()}
			// Both run in one network namespace, in which only one can route Services. A quick start of the
			// user may do so already.
			busy, err := routesServices()
			if err != nil {
				t.Fatal(err)
			}
			if v == hosts.Version16 || busy {
				q.services = "off"
			}
			q.build()
			t.Cleanup(func() { q.run("down") })
			foreign := q.runForeignSandbox()
			pid, imagesBefore, resourcesBefore := h.Pid(), q.images(), h.PodResources()

			output := q.run("up", "-containerd", h.Endpoint)
			for _, word := range []string{"kubectl get pods -A -o wide", "berth ps -A -o wide", "hello from berth",
				`deployment "my-nginx" successfully rolled out`, "nginx 1.16.1", "make down"} {
				if !strings.Contains(output, word) {
					t.Errorf("make up does not print %q", word)
				}
			}
			if q.services == "" {
				q.requireServices(true)
				if !strings.Contains(output, "my-service.default.svc.cluster.local. A: NOERROR") {
					t.Errorf("make up does not show the Service:\n%s", output)
				}
			}
			pods := q.pods()
			for _, name := range []string{"web", "once", "crash", "clock-quickstart"} {
				if !slices.Contains(pods, name) {
					t.Errorf("pods of the agent: got %v, want %s", pods, name)
				}
			}
			// web and its writer, clock, 3 my-nginx, 3 node-nginx, 2 of web, fluentd
			if n := q.runningContainers(); n < 12 {
				t.Errorf("got %d running containers in the existing containerd, want at least 12", n)
			}
			// The schedule, before a Job that is created by hand counts too.
			for _, field := range []string{"lastScheduleTime", "lastSuccessfulTime"} {
				q.kubectl("wait", "cronjob/hello", "--for=jsonpath={.status."+field+"}", "--timeout=5m")
			}
			q.kubectl("create", "job", "hello-now", "--from=cronjob/hello")
			q.kubectl("wait", "job/hello-now", "--for=condition=Complete", "--timeout=5m")
			if !q.isRunning(foreign) || h.Pid() != pid {
				t.Error("the foreign sandbox or containerd does not run anymore")
			}

			q.run("down")
			if q.services == "" {
				q.requireServices(false)
			}
			if !q.isRunning(foreign) || h.Pid() != pid {
				t.Error("the foreign sandbox or containerd does not run anymore")
			}
			if n := q.runningContainers(); n > 0 {
				t.Errorf("got %d running containers after make down, want 0", n)
			}
			if now := q.images(); !containsAll(now, imagesBefore) {
				t.Errorf("images: got %v, want at least %v", now, imagesBefore)
			}
			if now := h.PodResources(); !slices.Equal(now, resourcesBefore) {
				t.Errorf("pod resources before:\n%s\nafter:\n%s", strings.Join(resourcesBefore, "\n"),
					strings.Join(now, "\n"))
			}
			if _, err := os.Lstat(q.home); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s still exists: %v", q.home, err)
			}
			for _, name := range q.processes() {
				t.Errorf("process still runs: %s", name)
			}
		})
	}
}

// quickstart runs the command with its own files and programs.
type quickstart struct {
	*testing.T
	host      *hosts.Host
	home, bin string
	services  string // value of BERTH_UP_SERVICES
}

// requireServices checks whether this network namespace has rules of Services.
func (q *quickstart) requireServices(want bool) {
	q.Helper()
	has, err := routesServices()
	if err != nil || has != want {
		q.Errorf("rules of Services: %t, %v, want %t", has, err, want)
	}
}

// build builds the programs in the directory that the command uses.
func (q *quickstart) build() {
	q.Helper()
	agent, err := hosts.BuildBerth(q.Context(), hosts.BuildOptions{})
	if err != nil {
		q.Fatal(err)
	}
	server, err := hosts.BuildControl(q.Context(), hosts.BuildOptions{})
	if err != nil {
		q.Fatal(err)
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		q.Fatal(err)
	}
	for name, from := range map[string]string{"berth": agent, "berth-control": server, "kubectl": kubectl} {
		if err := copyProgram(filepath.Join(q.bin, name), from); err != nil {
			q.Fatal(err)
		}
	}
}

// copyProgram copies a program and blocks forks meanwhile: see hosts.WriteProgram.
func copyProgram(to, from string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// run runs the command with arguments and returns its output.
func (q *quickstart) run(args ...string) string {
	q.Helper()
	program, err := os.Executable()
	if err != nil {
		q.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "BERTH_UP_SERVICES="+q.services, "BERTH_UP_HOME="+q.home,
		"BERTH_UP_PROGRAMS="+q.bin, "BERTH_UP_NODE_IP="+q.host.Gateway.String(), fmt.Sprintf(
			"BERTH_UP_SETTINGS=cgroupRoot: %s\ncgroupDriver: cgroupfs\naddress: %s\nhealthzPort: 0\n",
			q.host.CgroupRoot, q.host.Gateway))
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(q.home, "berth.log"))
		q.Fatalf("up %v: %v\n%s\n%s\nberth log:\n%s", args, err, out.Bytes(), stderr.Bytes(),
			log[max(0, len(log)-6000):])
	}
	return out.String()
}

// kubectl runs kubectl against the server of the quick start and returns its output.
func (q *quickstart) kubectl(args ...string) string {
	q.Helper()
	cmd := exec.Command(filepath.Join(q.bin, "kubectl"), append([]string{"--kubeconfig",
		filepath.Join(q.home, "control", "admin.kubeconfig")}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+q.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		q.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// runForeignSandbox creates a sandbox that does not belong to berth.
func (q *quickstart) runForeignSandbox() string {
	q.Helper()
	uid := "8e1b8b3e-0000-4000-8000-000000000002"
	sb, err := q.host.Runtime.RunPodSandbox(q.Context(),
		&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "default", Uid: uid},
			LogDirectory: q.TempDir(),
			Labels: map[string]string{"io.kubernetes.pod.name": "foreign",
				"io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid},
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: q.host.CgroupRoot + "/foreign"},
		}})
	if err == nil {
		err = q.host.WaitRuncInit(q.Context())
	}
	if err != nil {
		q.Fatal(err)
	}
	return sb.PodSandboxId
}

func (q *quickstart) isRunning(sandbox string) bool {
	st, err := q.host.Runtime.PodSandboxStatus(q.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	return err == nil && st.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY
}

// images returns the names of all images in the runtime.
func (q *quickstart) images() (names []string) {
	q.Helper()
	list, err := q.host.Image.ListImages(q.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		q.Fatal(err)
	}
	for _, i := range list.Images {
		names = append(names, i.RepoTags...)
	}
	return names
}

func containsAll(all, part []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(all, s) })
}

// pods returns the names of the agent's pods.
func (q *quickstart) pods() (names []string) {
	q.Helper()
	client, err := nodeapi.Dial(filepath.Join(q.home, "berth.sock"))
	if err != nil {
		q.Fatal(err)
	}
	defer client.Close()
	list, err := client.Pods(q.Context(), nodeapi.PodsRequest{})
	if err != nil {
		q.Fatal(err)
	}
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

// runningContainers counts the running containers in the runtime.
func (q *quickstart) runningContainers() int {
	q.Helper()
	list, err := q.host.Runtime.ListContainers(q.Context(),
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
	if err != nil {
		q.Fatal(err)
	}
	return len(list.Containers)
}

// processes returns the running processes of the quick start.
func (q *quickstart) processes() (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, f := range files {
		if exe, err := os.Readlink(f); err == nil && strings.HasPrefix(exe, q.bin+"/") {
			found = append(found, f+" "+exe)
		}
	}
	return found
}
