package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// pair is a berth-control and an agent that has joined it, each in its own process. The benchmark uses
// the API like any client.
type pair struct {
	b        *bench
	original *hosts.Agent // the bench's own agent, which is stopped meanwhile
	server   *exec.Cmd
	exited   chan error // how server ended
	dir      string
	kube     kubernetes.Interface
	watcher  watch.Interface
	local    *nodeapi.Client
}

// node is the name of the joined node.
const node = "joined"

// newPair starts both and waits until the node accepts pods. The agent has only the permissions of a
// node. The bench's own agent is stopped until close.
func (b *bench) newPair(ctx context.Context) (p *pair, err error) {
	p = &pair{b: b, original: b.agent, dir: filepath.Join(b.host.Dir, "control"), exited: make(chan error, 1)}
	if err := p.original.Stop(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	config, err := p.serve(ctx)
	if err != nil {
		return p, err
	}
	if p.kube, err = kubernetes.NewForConfig(config); err != nil {
		return p, err
	}
	if err := p.join(ctx); err != nil {
		return p, err
	}
	p.watcher, err = p.watch(ctx)
	return p, err
}

// watch watches the pods. The server closes a watch that falls behind: RetryWatcher resumes it.
func (p *pair) watch(ctx context.Context) (watch.Interface, error) {
	pods := p.kube.CoreV1().Pods("default")
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, o)
		},
	})
}

// serve starts berth-control and waits until it is ready.
func (p *pair) serve(ctx context.Context) (*restclient.Config, error) {
	program, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return nil, err
	}
	port, err := hosts.FreePort()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.server = exec.Command(program, "serve", "--data-dir", p.dir, "--bind-address", "127.0.0.1", "--secure-port",
		strconv.Itoa(port))
	p.server.Stdout, p.server.Stderr = log, log
	p.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.server.Start(); err != nil {
		return nil, err
	}
	go func() { p.exited <- p.server.Wait() }() // close receives the result
	var config *restclient.Config
	err = hosts.WaitFor(ctx, "berth-control", func() (bool, error) {
		select {
		case err := <-p.exited:
			p.exited <- err
			return false, fmt.Errorf("berth-control exited: %w", err)
		default:
		}
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig")); err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		config.QPS = -1
		client, err := kubernetes.NewForConfig(config)
		return err == nil && client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, err
	})
	return config, err
}

func (p *pair) log() string { return filepath.Join(p.b.host.Dir, "berth-control.log") }

// join starts the agent and waits until the node is schedulable and the default service account exists.
func (p *pair) join(ctx context.Context) error {
	text, err := exec.CommandContext(ctx, p.server.Path, "kubeconfig", "--data-dir", p.dir,
		"--user", "system:node:"+node, "--group", "system:nodes").Output()
	if err != nil {
		return fmt.Errorf("kubeconfig of the node: %w", err)
	}
	file := filepath.Join(p.dir, "node.kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	agent, err := hosts.StartAgent(ctx, hosts.AgentOptions{
		Binary: p.original.Binary, Host: p.b.host, Name: node, NodeName: node,
		Config: map[string]any{"maxPods": 200}, BerthConfig: defaultSettings, ExtraArgs: []string{"--kubeconfig", file},
	})
	if err != nil {
		return err
	}
	p.b.agent = agent
	if err := agent.WaitReady(ctx); err != nil {
		return err
	}
	if p.local, err = nodeapi.Dial(agent.Socket); err != nil {
		return err
	}
	return hosts.WaitFor(ctx, "a schedulable node and the default service account", func() (bool, error) {
		n, err := p.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil || len(n.Spec.Taints) > 0 || !isSchedulable(n) {
			return false, err
		}
		_, err = p.kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func isSchedulable(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// close stops both and restarts the bench's own agent.
func (p *pair) close(ctx context.Context) error {
	if p.watcher != nil {
		p.watcher.Stop()
	}
	if p.local != nil {
		p.local.Close()
	}
	var errs []error
	if p.b.agent != p.original {
		errs = append(errs, p.b.agent.Stop(ctx))
	}
	if p.server != nil && p.server.Process != nil {
		errs = append(errs, p.server.Process.Signal(syscall.SIGTERM), <-p.exited)
	}
	p.b.agent = p.original
	return errors.Join(append(errs, os.RemoveAll(p.dir), p.original.Start(ctx), p.original.WaitReady(ctx))...)
}

// newPod returns a pod like those of function manifest.
func newPod(name string, args ...string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "c", Image: images.TestboxRef, Args: args}},
		},
	}
}

// podTimes holds the times from the first create request until the last pod reached a state.
type podTimes struct{ created, bound, running time.Duration }

// burst creates the pods with numbers from to to-1 at once and waits until all run.
func (p *pair) burst(ctx context.Context, from, to int, args ...string) (podTimes, error) {
	start := time.Now()
	var w podTimes
	errs := make(chan error, to-from)
	for i := from; i < to; i++ {
		go func() { // every goroutine sends exactly one result
			_, err := p.kube.CoreV1().Pods("default").Create(ctx, newPod(fmt.Sprintf("p%03d", i), args...),
				metav1.CreateOptions{})
			errs <- err
		}()
	}
	var first error
	for range to - from {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return w, first
	}
	w.created = time.Since(start)
	bound := map[string]bool{}
	err := p.waitFor(ctx, to-from, func(e watch.Event, pod *corev1.Pod) bool {
		if pod.Spec.NodeName != "" && !bound[pod.Name] {
			bound[pod.Name], w.bound = true, time.Since(start)
		}
		return e.Type != watch.Deleted && pod.Status.Phase == corev1.PodRunning
	})
	w.running = time.Since(start)
	return w, err
}

// deleteBurst deletes the first n pods and waits until they are deleted.
func (p *pair) deleteBurst(ctx context.Context, n int) error {
	for i := range n {
		if err := p.kube.CoreV1().Pods("default").Delete(ctx, fmt.Sprintf("p%03d", i),
			metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return p.waitFor(ctx, n, func(e watch.Event, _ *corev1.Pod) bool { return e.Type == watch.Deleted })
}

// waitFor receives events until cond has been true for n different pods.
func (p *pair) waitFor(ctx context.Context, n int, cond func(watch.Event, *corev1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	matched := map[string]bool{}
	for len(matched) < n {
		select {
		case e, ok := <-p.watcher.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if pod, isPod := e.Object.(*corev1.Pod); !isPod {
				return fmt.Errorf("unexpected watch event: %v", e.Object)
			} else if cond(e, pod) {
				matched[pod.Name] = true
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods: %w", len(matched), n, ctx.Err())
		}
	}
	return nil
}
