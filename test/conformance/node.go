package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"berth/test/hosts"
	"berth/test/images"
)

// Names of the nodes. Some tests of workloads need two.
const (
	nodeName       = "conformance"
	secondNodeName = "conformance-2"
)

// standIns starts a registry with the available replacements of the images that the tests use.
func standIns(ctx context.Context, p *programs, net network, dir string) (*images.Registry, error) {
	list, err := p.suite(ctx, dir, func(cmd *exec.Cmd) ([]byte, error) { return cmd.Output() }, "--list-images")
	if err != nil {
		return nil, fmt.Errorf("list images of the tests: %w", err)
	}
	r, err := images.NewRegistry(images.RegistryOptions{Addr: netip.AddrPortFrom(net.address, 0).String()})
	if err != nil {
		return nil, err
	}
	all, err := images.StandIns(ctx, p.upstream, append(strings.Fields(string(list)), chartImage))
	for ref, img := range all {
		err = errors.Join(err, r.PushImage(ctx, ref, img))
	}
	if err != nil {
		err = errors.Join(err, r.Close())
	}
	return r, err
}

// hostsToml returns the configuration that makes containerd pull the images from r.
func hostsToml(r *images.Registry, dir string) (map[string]string, error) {
	out := map[string]string{}
	for _, host := range []string{"registry.k8s.io", "docker.io"} {
		if err := r.HostsToml(dir, host); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, host, "hosts.toml"))
		if err != nil {
			return nil, err
		}
		out[host] = string(text)
	}
	return out, nil
}

// node is an agent on a private containerd.
type node struct {
	name  string
	host  *hosts.Host
	agent *hosts.Agent
	log   string
}

// join joins a node to the control plane as an operator does: berth join, then the agent.
func join(ctx context.Context, p *programs, pl *controlPlane, net network, registry *images.Registry, name,
	dir string) (*node, error) {
	config := filepath.Join(dir, name)
	toml, err := hostsToml(registry, filepath.Join(config, "certs"))
	if err != nil {
		return nil, err
	}
	files := []string{"--kubeconfig", filepath.Join(config, "kubeconfig"), "--bootstrap-kubeconfig",
		filepath.Join(config, "bootstrap.kubeconfig")}
	args := slices.Concat([]string{"join"}, pl.join, files, []string{"--config", filepath.Join(config, "join.yaml")})
	if out, err := exec.CommandContext(ctx, p.berth, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("berth join: %w: %s", err, out)
	}
	// The tests of RuntimeClass use this handler name.
	h, err := hosts.Start(ctx, hosts.Options{Version: hosts.Version2, CNI: net.lan == nil, LAN: net.lan,
		Handlers: []string{"test-handler"}, Registries: toml})
	if err != nil {
		return nil, err
	}
	n := &node{name: name, host: h, log: filepath.Join(dir, name+".log")}
	n.agent, err = hosts.StartAgent(ctx, hosts.AgentOptions{Binary: p.berth, Host: h, NodeName: name,
		ExtraArgs: files, BerthConfig: net.agentConfig(), Config: map[string]any{
			"serverTLSBootstrap": true,
			"authentication": map[string]any{"x509": map[string]any{"clientCAFile": filepath.Join(config,
				"ca.crt")}},
		}})
	if err == nil {
		err = n.waitReady(ctx, pl)
	}
	if err == nil {
		err = net.route(ctx, pl, n)
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

// waitReady waits until the node is Ready and has its serving certificate.
func (n *node) waitReady(ctx context.Context, pl *controlPlane) error {
	const ready = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`
	if err := pl.ready(ctx, "the node to be Ready", "True", "get", "node", n.name, "-o", ready); err != nil {
		return err
	}
	return hosts.WaitFor(ctx, "the node's serving certificate", func() (bool, error) {
		if pl.approve {
			pending, err := pl.kubectlOutput(ctx, "", "get", "csr", "-o", "name", "--field-selector",
				"spec.signerName=kubernetes.io/kubelet-serving")
			if err != nil || pending == "" {
				return false, err
			}
			if _, err := pl.kubectlOutput(ctx, "", append([]string{"certificate", "approve"},
				strings.Fields(pending)...)...); err != nil {
				return false, err
			}
		}
		_, err := pl.kubectlOutput(ctx, "", "get", "--raw", "/api/v1/nodes/"+n.name+"/proxy/healthz")
		return err == nil, nil
	})
}

// stop writes the agent's log and stops its host.
func (n *node) stop() (err error) {
	if n.agent != nil {
		err = os.WriteFile(n.log, []byte(n.agent.Log()), 0o644)
	}
	return errors.Join(err, n.host.Stop())
}
