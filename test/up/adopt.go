package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// home is where the agent of a running containerd has its files.
const home = "/var/lib/berth-quickstart"

func path(name string) string { return filepath.Join(home, name) }

// adopt starts the agent on a containerd that somebody else runs.
func adopt(ctx context.Context, endpoint, binary string, archives []images.Archive) (*node, error) {
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("CONTAINERD=%s: want unix:///path/of/its/socket", endpoint)
	}
	say("importing images into the containerd at " + socket)
	for _, a := range archives {
		if err := ctr(ctx, socket, "images", "import", a.Path); err != nil {
			return nil, err
		}
	}
	if err := nameSandboxImage(ctx, socket, endpoint); err != nil {
		return nil, err
	}
	for _, dir := range []string{"manifests", "kubelet", "state", "logs"} {
		if err := os.MkdirAll(path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodLogsDir: %s\nfailSwapOn: false\nfailCgroupV1: false\n", path("logs"))
	if err := os.WriteFile(path("config.yaml"), []byte(config), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(path("berth.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	say("starting berth")
	cmd := exec.Command(binary, "run", "--config", path("config.yaml"), "--root-dir", path("kubelet"), "--state-dir", path("state"),
		"--socket", path("berth.sock"), "--container-runtime-endpoint", endpoint, "--pod-manifest-path", path("manifests"),
		"--hostname-override", "quickstart")
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path("berth.pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	if err := cmd.Process.Release(); err != nil { // it outlives us: make down ends it
		return nil, err
	}
	n := &node{binary, path("berth.sock"), path("manifests")}
	return n, n.answer(ctx)
}

// answer waits until the agent answers.
func (n *node) answer(ctx context.Context) error {
	client, err := nodeapi.Dial(n.socket)
	if err != nil {
		return err
	}
	defer client.Close()
	return hosts.WaitFor(ctx, "berth to answer, see "+path("berth.log"), func() (bool, error) {
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

// nameSandboxImage gives our pause image the name that this containerd is
// configured with, if it has none of that name: no registry may be in reach.
func nameSandboxImage(ctx context.Context, socket, endpoint string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("ask the containerd at %s: %w", endpoint, err)
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if err := json.Unmarshal([]byte(st.Info["config"]), &config); err != nil || config.SandboxImage == "" {
		return nil // it does not tell; then it will say itself what it misses
	}
	image, err := runtimeapi.NewImageServiceClient(conn).ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: config.SandboxImage}})
	if err != nil {
		return err
	}
	if image.Image != nil {
		return nil
	}
	return ctr(ctx, socket, "images", "tag", images.PauseRef, config.SandboxImage)
}

// release ends the pods that adopt's agent runs, then the agent, and removes
// its files. Images stay: they may be somebody's by now.
func release(ctx context.Context) error {
	text, err := os.ReadFile(path("berth.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(home)
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", path("berth.pid"), err)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "berth" {
		if err := endPods(ctx); err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return err
		}
		if err := hosts.WaitFor(ctx, "berth to leave", func() (bool, error) {
			return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), nil
		}); err != nil {
			return err
		}
	}
	if err := syscall.Unmount(path("kubelet"), 0); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path("kubelet"), err)
	}
	return os.RemoveAll(home)
}

// endPods takes the manifests away and waits until no pod is left.
func endPods(ctx context.Context) error {
	if err := os.RemoveAll(path("manifests")); err != nil {
		return err
	}
	client, err := nodeapi.Dial(path("berth.sock"))
	if err != nil {
		return err
	}
	defer client.Close()
	return hosts.WaitFor(ctx, "the pods to end", func() (bool, error) {
		list, err := client.Pods(ctx, nodeapi.PodsRequest{})
		return err == nil && len(list.Items) == 0, err
	})
}
