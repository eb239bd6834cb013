package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// BuildKubelet builds the kubelet of the version in the module of upstream tests, once per version of
// Kubernetes and Go. It takes minutes.
func BuildKubelet(ctx context.Context) (string, error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "conformance", "upstream")
	version, err := moduleVersion(filepath.Join(module, "go.mod"), "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	ldflags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	key, err := ModuleKey(module, ldflags)
	if err != nil {
		return "", err
	}
	dir, err := Cached("kubelet", key, func(dir string) error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", ldflags, "-o", filepath.Join(dir, "kubelet"),
			"k8s.io/kubernetes/cmd/kubelet")
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the kubelet: %w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(dir, "kubelet"), err
}

// moduleVersion returns the version of a module in a go.mod file.
func moduleVersion(file, module string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require ")); len(f) > 1 && f[0] == module {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, module)
}

// Kubelet is a kubelet that takes turns with an agent on the same directories.
type Kubelet struct {
	cmd  *exec.Cmd
	done chan error
	log  string
}

// StartKubelet starts the kubelet on the directories, the runtime and the cgroups of an agent that does
// not run. kubeconfig is that of the API server. Empty: only the agent's manifest directory has pods.
func StartKubelet(program string, a *Agent, node, kubeconfig string, ports [2]int) (*Kubelet, error) {
	dir := filepath.Dir(a.RootDir)
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"cgroupRoot": a.Host.CgroupRoot, "cgroupDriver": "cgroupfs", "podLogsDir": a.LogsDir,
		"containerRuntimeEndpoint": a.Host.Endpoint, "staticPodPath": a.ManifestDir, "failSwapOn": false,
		"failCgroupV1": false, "address": a.Host.Gateway.String(), "port": ports[0], "healthzPort": 0,
		"evictionHard": map[string]string{"memory.available": "100Mi"}, "imageGCHighThresholdPercent": 100,
		"enforceNodeAllocatable": []string{"none"}, "authorization": map[string]any{"mode": "AlwaysAllow"},
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false},
		},
		"volumePluginDir": filepath.Join(dir, "flexvolumes"), "fileCheckFrequency": "1s", "syncFrequency": "10s",
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	args := []string{
		"--config", file, "--root-dir", a.RootDir, "--hostname-override", node, "--node-ip", a.Host.Gateway.String(),
		"--cert-dir", filepath.Join(dir, "kubelet-pki"), "-v", "2",
	}
	if kubeconfig != "" {
		args = append(args, "--kubeconfig", kubeconfig)
	}
	k := &Kubelet{cmd: exec.Command(program, args...), done: make(chan error, 1),
		log: filepath.Join(dir, "kubelet.log")}
	log, err := os.OpenFile(k.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	k.cmd.Stdout, k.cmd.Stderr, k.cmd.Dir = log, log, "/"
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the kubelet: %w", err)
	}
	go func() { k.done <- k.cmd.Wait() }()
	return k, nil
}

// Stop stops the kubelet and waits until it has exited. Its pods keep running.
func (k *Kubelet) Stop() error {
	err := k.cmd.Process.Signal(unix.SIGTERM)
	if !errors.Is(err, os.ErrProcessDone) && err != nil {
		return err
	}
	<-k.done // the error is the signal
	k.done <- nil
	return nil
}

// Log returns the end of the kubelet's log.
func (k *Kubelet) Log() string { return logTail(k.log) }
