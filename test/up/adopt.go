package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// Overrides for the test of the quick start, which lets it run next to a quick start of the user and other
// agents.
var (
	home     = cmp.Or(os.Getenv("BERTH_UP_HOME"), "/var/lib/berth-quickstart") // directory of all files
	programs = os.Getenv("BERTH_UP_PROGRAMS")                                  // program directory; default: bin
	settings = os.Getenv("BERTH_UP_SETTINGS")                                  // more agent configuration
	nodeIP   = os.Getenv("BERTH_UP_NODE_IP")                                   // empty: that of the default route
)

func path(name string) string { return filepath.Join(home, name) }

// program returns the path of a program that make build has built.
func program(repo, name string) string {
	return filepath.Join(cmp.Or(programs, filepath.Join(repo, "bin")), name)
}

// startOnExisting starts the agent on an existing containerd.
func startOnExisting(ctx context.Context, endpoint, binary string, archives []images.Archive, join []string) (*node,
	error) {
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("CONTAINERD=%s: want unix:///path/to/socket", endpoint)
	}
	logStep("importing images into the containerd at " + socket)
	for _, a := range archives {
		if err := ctr(ctx, socket, "images", "import", a.Path); err != nil {
			return nil, err
		}
	}
	if err := tagSandboxImage(ctx, socket, endpoint); err != nil {
		return nil, err
	}
	for _, dir := range []string{"manifests", "kubelet", "state", "logs"} {
		if err := os.MkdirAll(path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	services, err := servicesSetting()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: %s
serverTLSBootstrap: true
authentication: {x509: {clientCAFile: %s}}
failSwapOn: false
failCgroupV1: false
# Do not remove images of the existing containerd, and run the pods on a full disk too.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi}
%s---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
serviceProxy: "%s"
clusterDNSServer: "%s"
`, path("logs"), path("ca.crt"), settings, services, services)
	if nodeIP != "" {
		config += fmt.Sprintf("nodeIPs: [%q]\n", nodeIP)
	}
	if err := os.WriteFile(path("config.yaml"), []byte(config), 0o644); err != nil {
		return nil, err
	}
	logStep("starting berth")
	args := append([]string{"run", "--config", path("config.yaml"), "--root-dir", path("kubelet"), "--state-dir",
		path("state"),
		"--socket", path("berth.sock"), "--container-runtime-endpoint", endpoint, "--pod-manifest-path",
		path("manifests"),
		"--cert-dir", path("node"), "--hostname-override", "quickstart"}, join...)
	if err := detach("berth", binary, args...); err != nil {
		return nil, err
	}
	n := &node{binary, path("berth.sock"), path("manifests")}
	return n, n.waitReady(ctx)
}

// waitReady waits until the agent responds.
func (n *node) waitReady(ctx context.Context) error {
	client, err := nodeapi.Dial(n.socket)
	if err != nil {
		return err
	}
	defer client.Close()
	return hosts.WaitFor(ctx, "berth to respond, see "+path("berth.log"), func() (bool, error) {
		_, err := client.Version(ctx)
		return err == nil, nil
	})
}

func ctr(ctx context.Context, socket string, args ...string) error {
	cmd := exec.CommandContext(ctx, "ctr", append([]string{"-a", socket, "-n", "k8s.io"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// tagSandboxImage tags the pause image with the sandbox image name of this containerd, unless that image
// exists: a registry may be unreachable.
func tagSandboxImage(ctx context.Context, socket, endpoint string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("get status of the containerd at %s: %w", endpoint, err)
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if err := json.Unmarshal([]byte(st.Info["config"]), &config); err != nil || config.SandboxImage == "" {
		return nil // unknown: without the image, sandboxes fail with a clear error
	}
	image, err := runtimeapi.NewImageServiceClient(conn).ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: config.SandboxImage}})
	if err != nil {
		return err
	}
	if image.Image != nil {
		return nil
	}
	return ctr(ctx, socket, "images", "tag", images.PauseRef, config.SandboxImage)
}

// cleanUp deletes the workloads and pods that the agent on an existing containerd runs, stops the agent and the control
// server and removes their files. It keeps images, which may be in use.
func cleanUp(ctx context.Context, repo string) error {
	pid, err := running("berth")
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := deletePods(ctx, repo); err != nil {
			return err
		}
	}
	for _, name := range []string{"berth", "berth-control"} {
		if err := stop(ctx, name); err != nil {
			return err
		}
	}
	if err := removeServices(); err != nil {
		return err
	}
	if err := syscall.Unmount(path("kubelet"), 0); err != nil && !errors.Is(err, syscall.EINVAL) &&
		!errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path("kubelet"), err)
	}
	return os.RemoveAll(home)
}

// workloadKinds are the kinds whose controllers would replace deleted pods.
const workloadKinds = "cronjobs,jobs,deployments,statefulsets,daemonsets,replicasets,replicationcontrollers"

// deletePods deletes all workloads, pods and manifests and waits until no pod is left on the node.
func deletePods(ctx context.Context, repo string) error {
	if err := os.RemoveAll(path("manifests")); err != nil {
		return err
	}
	s := newServer(repo)
	if pid, err := running("berth-control"); err != nil {
		return err
	} else if pid == 0 { // it has exited: pods are deleted only through the server
		if s, err = startServer(ctx, repo); err != nil {
			return err
		}
	}
	for _, kinds := range []string{workloadKinds, "pods"} {
		if _, err := s.run(ctx, "delete", kinds, "--all", "--all-namespaces", "--timeout=60s"); err != nil {
			return err
		}
	}
	client, err := nodeapi.Dial(path("berth.sock"))
	if err != nil {
		return err
	}
	defer client.Close()
	return hosts.WaitFor(ctx, "the pods to be deleted", func() (bool, error) {
		list, err := client.Pods(ctx, nodeapi.PodsRequest{})
		return err == nil && len(list.Items) == 0, err
	})
}
