// Command up is behind `make up` and `make down`: it shows berth's main job on
// real containers, on a machine with no registry in reach. It makes images from
// local files, starts a private containerd (or uses a running one), starts the
// agent on the examples, and prints what runs and what to try next.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"berth/test/hosts"
	"berth/test/images"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: up up [-containerd unix:///run/containerd/containerd.sock] | up down")
		os.Exit(2)
	}
	fs := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	running := fs.String("containerd", "", "socket of a running containerd to use instead of a private one")
	_ = fs.Parse(os.Args[2:]) // exits by itself
	var err error
	switch os.Args[1] {
	case "up":
		err = up(ctx, *running)
	case "down":
		err = down(ctx)
	default:
		err = fmt.Errorf("unknown command %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make", os.Args[1]+":", err)
		os.Exit(1)
	}
}

func up(ctx context.Context, running string) error {
	if os.Geteuid() != 0 {
		return errors.New("run as root: pods need mounts, cgroups and network namespaces")
	}
	if err := down(ctx); err != nil { // a second `make up` starts afresh
		return err
	}
	repo, err := hosts.Repo()
	if err != nil {
		return err
	}
	say("making images from local files")
	dir, err := images.CacheDir()
	if err != nil {
		return err
	}
	archives, err := images.All(ctx, dir)
	if err != nil {
		return err
	}
	n, err := start(ctx, repo, running, archives)
	if err != nil {
		return err
	}
	if err := n.copyExamples(repo); err != nil {
		return err
	}
	return n.show(ctx)
}

// node is the agent that runs, whoever owns its containerd.
type node struct {
	binary, socket, manifests string
}

func start(ctx context.Context, repo, running string, archives []images.Archive) (*node, error) {
	binary := filepath.Join(repo, "bin", "berth")
	if running != "" {
		return adopt(ctx, running, binary, archives)
	}
	say("starting a private containerd (the first time it is built from its Go module)")
	var paths []string
	for _, a := range archives {
		paths = append(paths, a.Path)
	}
	h, err := hosts.Start(ctx, hosts.Options{Version: hosts.Version2, Images: paths, CNI: true, Detached: true})
	if err != nil {
		return nil, err
	}
	say("starting berth")
	a, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: binary, Host: h, NodeName: "quickstart", Detached: true})
	if err != nil {
		return nil, errors.Join(err, h.Stop())
	}
	if err := a.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, errors.New(a.Log()), h.Stop())
	}
	return &node{binary, a.Socket, a.ManifestDir}, nil
}

// copyExamples gives the agent its pods: one file after the other, by rename,
// so that none is seen half written.
func (n *node) copyExamples(repo string) error {
	files, err := filepath.Glob(filepath.Join(repo, "examples", "*.yaml"))
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		tmp := filepath.Join(n.manifests, "."+filepath.Base(f))
		if err := os.WriteFile(tmp, text, 0o644); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(n.manifests, filepath.Base(f))); err != nil {
			return err
		}
	}
	return nil
}

// show waits for the pods and prints what a user would want to see first.
func (n *node) show(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	ip, err := n.settle(ctx)
	if err != nil {
		_ = n.berth(ctx, "ps", "-A", "-o", "wide") // what there is helps more than nothing
		return err
	}
	fmt.Println()
	if err := n.berth(ctx, "ps", "-A", "-o", "wide"); err != nil {
		return err
	}
	page, err := get(ctx, "http://"+ip)
	if err != nil {
		return fmt.Errorf("ask the web pod at %s: %w", ip, err)
	}
	fmt.Printf("\n$ curl http://%s\n%s\n", ip, page)
	b := n.binary + " --socket " + n.socket
	fmt.Printf(`What to try next:
  alias berth=%q
  berth ps -w                     # watch the pods
  berth why crash                 # what it waits for, and what comes next
  berth timeline web              # where the time of its start went
  berth logs web -c writer
  berth exec -it web -c nginx -- sh
  berth describe web
  berth check                     # can this node run pods?
  $EDITOR %s/web.yaml             # a change of the ConfigMap is in the page a second later
  make down                       # takes everything away
`, b, n.manifests)
	return nil
}

func (n *node) berth(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, n.binary, append([]string{"--socket", n.socket}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// down ends every pod of the quick start and takes away all that was made.
func down(ctx context.Context) error {
	open, err := hosts.Open()
	if err != nil {
		return err
	}
	for _, h := range open {
		if err := h.Stop(); err != nil {
			return err
		}
	}
	return release(ctx)
}

func say(text string) { fmt.Fprintln(os.Stderr, "==>", text) }
