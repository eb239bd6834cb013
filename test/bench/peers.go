package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/control/controllers"
	"berth/test/hosts"
	"berth/test/upstream"
)

// controlPlane is a berth-control, alone or with the controllers and the scheduler of Kubernetes instead of its own.
type controlPlane struct {
	*controlServer
	peers []*exec.Cmd // kube-controller-manager and kube-scheduler
	dir   string      // of their logs
}

// excludedControllers are the controllers of kube-controller-manager for kinds that berth-control stores only, and
// those that berth-control keeps.
const excludedControllers = "-certificatesigningrequest-approving-controller," +
	"-certificatesigningrequest-signing-controller,-podcertificaterequest-cleaner-controller," +
	"-service-cidr-controller,-storage-version-migrator-controller," +
	"-kube-apiserver-serving-clustertrustbundle-publisher-controller"

// newControlPlane starts berth-control with further flags.
func newControlPlane(ctx context.Context, flags ...string) (*controlPlane, error) {
	dir, err := os.MkdirTemp("", "berth-bench-peers-")
	if err != nil {
		return nil, err
	}
	s, err := startControl(ctx, flags...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &controlPlane{controlServer: s, dir: dir}, nil
}

// startOwn starts berth-control with all its controllers and its scheduler.
func startOwn(ctx context.Context) (*controlPlane, error) { return newControlPlane(ctx) }

// startPeers starts berth-control without its controllers and its scheduler, and those of Kubernetes. Their client
// limits are so high that they do not bind.
func startPeers(ctx context.Context) (p *controlPlane, err error) {
	programs, err := upstream.Build(ctx, "kube-controller-manager", "kube-scheduler")
	if err != nil {
		return nil, err
	}
	var list strings.Builder
	list.WriteString("*,-scheduler,-clusterrole-aggregation-controller")
	for _, name := range controllers.Names() {
		if name != controllers.CSRApproving && name != controllers.CSRSigning {
			list.WriteString(",-" + name)
		}
	}
	if p, err = newControlPlane(ctx, "--controllers", list.String()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	key := func(name string) string { return filepath.Join(p.controlServer.dir, "pki", name) }
	common := []string{"--kubeconfig", filepath.Join(p.controlServer.dir, "admin.kubeconfig"), "--leader-elect=false",
		"--kube-api-qps", "100000", "--kube-api-burst", "100000"}
	if err := p.start(filepath.Join(programs, "kube-controller-manager"), append(common,
		"--root-ca-file", key("ca.crt"), "--service-account-private-key-file", key("service-account.key"),
		"--allocate-node-cidrs", "--cluster-cidr", "10.42.0.0/16", "--flex-volume-plugin-dir",
		filepath.Join(p.dir, "flexvolumes"), "--controllers", "*,"+excludedControllers)); err != nil {
		return p, err
	}
	return p, p.start(filepath.Join(programs, "kube-scheduler"), common)
}

// start starts a program of Kubernetes on a free port. It logs to a file.
func (p *controlPlane) start(program string, args []string) error {
	port, err := hosts.FreePort()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(p.dir, filepath.Base(program)+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, append([]string{"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port)},
		args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	p.peers = append(p.peers, cmd)
	return nil
}

// stop stops all programs and removes their files.
func (p *controlPlane) stop() (err error) {
	for _, cmd := range p.peers {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // the error is the signal
	}
	return errors.Join(os.RemoveAll(p.dir), p.controlServer.stop())
}

// peersRSS returns the resident memory of the programs of Kubernetes.
func (p *controlPlane) peersRSS() (total int64, err error) {
	for _, cmd := range p.peers {
		n, err := rssOf(cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// cpu returns the CPU time of all programs since their start.
func (p *controlPlane) cpu() (total time.Duration, err error) {
	for _, cmd := range append([]*exec.Cmd{p.cmd}, p.peers...) {
		n, err := cpuOf(cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// controlIdle measures the memory of a control plane without objects: berth-control with its controllers and its
// scheduler, and berth-control without them beside those of Kubernetes.
func (b *bench) controlIdle(ctx context.Context) error {
	var own, bare []time.Duration // bytes
	var peers [2][]time.Duration
	for range *rounds {
		p, err := startOwn(ctx)
		if err != nil {
			return err
		}
		server, _, err := p.idleMemory(ctx)
		if err = errors.Join(err, p.stop()); err != nil {
			return err
		}
		own = append(own, time.Duration(server))
		if p, err = startPeers(ctx); err != nil {
			return err
		}
		server, of, err := p.idleMemory(ctx)
		if err = errors.Join(err, p.stop()); err != nil {
			return err
		}
		bare = append(bare, time.Duration(server))
		for i := range peers {
			peers[i] = append(peers[i], time.Duration(of[i]))
		}
	}
	all := median(bare)
	texts := []string{"without them " + mib(int64(median(bare)))}
	for i, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		all += median(peers[i])
		texts = append(texts, name+" "+mib(int64(median(peers[i]))))
	}
	b.add("berth-control: resident memory, idle, with controllers and scheduler", mib(int64(median(own))),
		strings.Join(texts, ", "), ratio(median(own), all), "<= 130 MiB")
	return nil
}

// idleMemory returns the resident memory, in bytes, of berth-control and of each program of Kubernetes, when they
// have been idle for a while.
func (p *controlPlane) idleMemory(ctx context.Context) (server int64, peers []int64, err error) {
	if err := pause(ctx, idleWait); err != nil {
		return 0, nil, err
	}
	for _, cmd := range p.peers {
		n, err := rssOf(cmd.Process.Pid)
		if err != nil {
			return 0, nil, err
		}
		peers = append(peers, n)
	}
	server, err = p.rss()
	return server, peers, err
}
