// Command up implements make up and make down. It demonstrates berth with real containers on a machine without
// access to a registry. It builds images from local files, starts a private containerd or uses an existing
// one, starts the agent with the examples, and prints the running pods and what to try next.
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
	"strings"
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
	_ = fs.Parse(os.Args[2:]) // ExitOnError
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
	if err := down(ctx); err != nil { // make up starts from a clean state
		return err
	}
	repo, err := hosts.RepoRoot()
	if err != nil {
		return err
	}
	logStep("building images from local files")
	dir, err := images.CacheDir()
	if err != nil {
		return err
	}
	archives, err := images.All(ctx, dir)
	if err != nil {
		return err
	}
	s, err := startServer(ctx, repo)
	if err != nil {
		return err
	}
	join, err := s.join(ctx, repo)
	if err != nil {
		return err
	}
	n, err := start(ctx, repo, running, archives, join)
	if err != nil {
		return err
	}
	if err := n.copy(filepath.Join(repo, "examples", "node")); err != nil {
		return err
	}
	logStep("applying examples/ with kubectl")
	if err := s.print(ctx, "apply", "-f", filepath.Join(repo, "examples")); err != nil {
		return err
	}
	return n.show(ctx, s)
}

// node is the running agent, on any containerd.
type node struct {
	binary, socket, manifests string
}

func start(ctx context.Context, repo, running string, archives []images.Archive, join []string) (*node, error) {
	binary := program(repo, "berth")
	if running != "" {
		return startOnExisting(ctx, running, binary, archives, join)
	}
	logStep("starting a private containerd (the first time it is built from its Go module)")
	var paths []string
	for _, a := range archives {
		paths = append(paths, a.Path)
	}
	h, err := hosts.Start(ctx, hosts.Options{Version: hosts.Version2, Images: paths, CNI: true, Detached: true,
		Owner: home})
	if err != nil {
		return nil, err
	}
	services, err := servicesSetting()
	if err != nil {
		return nil, errors.Join(err, h.Stop())
	}
	logStep("starting berth")
	a, err := hosts.StartAgent(ctx, hosts.AgentOptions{Binary: binary, Host: h, NodeName: "quickstart", ExtraArgs: join,
		Detached: true, BerthConfig: map[string]any{"serviceProxy": services, "clusterDNSServer": services},
		Config: map[string]any{
			"serverTLSBootstrap": true,
			"authentication":     map[string]any{"x509": map[string]any{"clientCAFile": path("ca.crt")}},
		}})
	if err != nil {
		return nil, errors.Join(err, h.Stop())
	}
	if err := a.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, errors.New(a.Log()), h.Stop())
	}
	return &node{binary, a.Socket, a.ManifestDir}, nil
}

// copy copies the static pods to the manifest directory, each by an atomic rename.
func (n *node) copy(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
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

// show waits for the pods and prints them.
func (n *node) show(ctx context.Context, s *server) error {
	const limit = 10 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the examples were not complete after %s", limit))
	defer cancel()
	ip, err := s.waitExamples(ctx)
	if err != nil {
		left := context.WithoutCancel(ctx) // which pods are missing, and why
		_ = s.print(left, "get", "pods", "-A", "-o", "wide")
		_ = s.print(left, "get", "events", "-A", "--field-selector", "type=Warning")
		return err
	}
	if err := s.update(ctx); err != nil {
		return err
	}
	if err := n.showService(ctx, s); err != nil {
		return err
	}
	for _, args := range [][]string{{"rollout", "status", "deployment/node-nginx"}, {"get", "deployments"}} {
		fmt.Println("\n$ berth", strings.Join(args, " "))
		if err := n.berth(ctx, args...); err != nil {
			return err
		}
	}
	fmt.Println("\n$ kubectl get pods -A -o wide")
	if err := s.print(ctx, "get", "pods", "-A", "-o", "wide"); err != nil {
		return err
	}
	fmt.Println("\n$ berth ps -A -o wide")
	if err := n.berth(ctx, "ps", "-A", "-o", "wide"); err != nil {
		return err
	}
	page, err := get(ctx, "http://"+ip)
	if err != nil {
		return fmt.Errorf("get the page of the web pod at %s: %w", ip, err)
	}
	fmt.Printf("\n$ curl http://%s\n%s\n", ip, page)
	link, err := s.link(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n$ berth-control ui                # a link to the web page, for one use within 5 minutes\n%s\n\n", link)
	fmt.Printf(`What to try next:
  export KUBECONFIG=%s; alias kubectl=%q
  kubectl get nodes -o wide; kubectl describe pod web; kubectl top pods
  kubectl logs -f web -c writer
  kubectl exec -it web -c nginx -- sh
  kubectl edit configmap page     # the page in the pod changes within half a second
  kubectl delete pod crash
  kubectl exec web-0 -- df -h /usr/share/nginx/html     # a volume with the size of its claim
  kubectl scale deployment my-nginx --replicas 5; kubectl rollout undo deployment my-nginx
  kubectl create job hello-now --from=cronjob/hello
  kubectl exec web -c nginx -- bash -c 'exec 3<>/dev/tcp/my-service/80 && echo reached my-service by name'

  alias berth=%q                  # works without the server too
  berth why crash                 # why the pod does not run, and what happens next
  berth timeline web              # duration of each step of the pod's start
  berth check                     # can this node run pods?
  $EDITOR %s/node-nginx.yaml   # a Deployment of the node; clock.yaml is a static pod
  berth services -A; berth dns query my-service
  berth rollout history deployment/node-nginx; berth scale deployment/node-nginx --replicas 2
  make down                       # remove everything
`, s.kubeconfig, s.kubectl, n.binary+" --socket "+n.socket, n.manifests)
	return nil
}

func (n *node) berth(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, n.binary, append([]string{"--socket", n.socket}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// down deletes every pod of the quick start and removes everything that it created.
func down(ctx context.Context) error {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return err
	}
	open, err := hosts.OpenDetached(home)
	if err != nil {
		return err
	}
	for _, h := range open {
		if err := h.Stop(); err != nil {
			return err
		}
	}
	return cleanUp(ctx, repo)
}

func logStep(text string) { fmt.Fprintln(os.Stderr, "==>", text) }
