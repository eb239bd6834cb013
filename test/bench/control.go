package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/test/hosts"
)

// controlServer is a running berth-control with its default components and its own data directory.
type controlServer struct {
	program, port string
	dir           string

	cmd    *exec.Cmd
	client *kubernetes.Clientset
	took   time.Duration // from the start to the first successful /readyz
}

// startControl starts berth-control with further flags and waits until it is ready.
func startControl(ctx context.Context, flags ...string) (_ *controlServer, err error) {
	bin, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return nil, err
	}
	s := &controlServer{}
	if s.dir, err = os.MkdirTemp("", "berth-bench-control-"); err != nil {
		return nil, err
	}
	port, err := hosts.FreePort()
	if err != nil {
		return nil, err
	}
	s.program, s.port = bin, strconv.Itoa(port)
	if err := s.launch(ctx, flags...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// launch starts the program and waits until it is ready.
func (s *controlServer) launch(ctx context.Context, flags ...string) error {
	s.cmd = exec.Command(s.program, append([]string{"serve", "--data-dir", s.dir, "--bind-address", "127.0.0.1",
		"--secure-port", s.port}, flags...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for !s.ready(ctx) {
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return errors.Join(err, s.exit())
		}
	}
	s.took = time.Since(start)
	return nil
}

// restart stops the program gracefully and starts it again, on the same store, with other flags.
func (s *controlServer) restart(ctx context.Context, flags ...string) error {
	if err := s.exit(); err != nil {
		return err
	}
	return s.launch(ctx, flags...)
}

// ready reports whether /readyz succeeds. It creates the client as soon as the kubeconfig exists.
func (s *controlServer) ready(ctx context.Context) bool {
	if s.client == nil {
		c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "admin.kubeconfig"))
		if err != nil {
			return false
		}
		c.QPS, c.WarningHandler = -1, restclient.NoWarnings{}
		c.ContentConfig = restclient.ContentConfig{ContentType: runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf}
		if s.client, err = kubernetes.NewForConfig(c); err != nil {
			return false
		}
	}
	code := 0
	s.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code)
	return code == http.StatusOK
}

// exit stops the program.
func (s *controlServer) exit() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.cmd.Wait()
}

// stop stops the program and removes its files.
func (s *controlServer) stop() error { return errors.Join(s.exit(), os.RemoveAll(s.dir)) }

func (s *controlServer) rss() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// controlReady measures the first start until the server is ready, including the creation of keys and
// certificates.
func (b *bench) controlReady(ctx context.Context) error {
	var all []time.Duration
	for range *rounds {
		s, err := startControl(ctx)
		if err != nil {
			return err
		}
		all = append(all, s.took)
		if err := s.stop(); err != nil {
			return err
		}
	}
	b.add("berth-control: first start to ready", ms(median(all)), "-", "", "<= 1500 ms")
	return nil
}

// controlMemory measures the memory of an idle server and of a server with objects and watchers.
func (b *bench) controlMemory(ctx context.Context) (err error) {
	s, err := startControl(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := pause(ctx, idleWait); err != nil {
		return err
	}
	got, err := s.rss()
	if err != nil {
		return err
	}
	b.add("berth-control: resident memory, idle", mib(got), "-", "", "<= 130 MiB")
	if err := s.load(ctx); err != nil {
		return err
	}
	renewCtx, stop := context.WithCancel(ctx)
	renewals := make(chan error, 1)
	go func() { renewals <- s.renewLeases(renewCtx) }()
	defer func() { stop(); err = errors.Join(err, <-renewals) }()
	for range watchers {
		w, err := s.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
		if err != nil {
			return err
		}
		go func() { // the watch ends with the server
			for range w.ResultChan() {
			}
		}()
	}
	if err := pause(ctx, idleWait); err != nil {
		return err
	}
	if got, err = s.rss(); err != nil {
		return err
	}
	b.add("berth-control: resident memory, 1000 pods and 50 watchers", mib(got), "-", "", "<= 160 MiB")
	return nil
}

const (
	watchers  = 50
	loadNodes = 10
	loadPods  = 1000
	writers   = 20
)

// load creates nodes and running pods on them.
func (s *controlServer) load(ctx context.Context) error {
	for i := range loadNodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
		n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"),
			"pods": resource.MustParse("200")}
		n.Status.Allocatable = n.Status.Capacity
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			LastHeartbeatTime: metav1.Now()}}
		if _, err := s.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return s.parallel(ctx, loadPods, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": "load",
				"n": strconv.Itoa(i % 20)}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i%loadNodes), Containers: []corev1.Container{{
				Name: "main", Image: "example.com/load:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("10m")}},
			}}},
		}
		created, err := s.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		created.Status.Phase, created.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.42.%d.%d", i/200, i%200)
		created.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: true,
			Image: "example.com/load:1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
		_, err = s.client.CoreV1().Pods("default").UpdateStatus(ctx, created, metav1.UpdateOptions{})
		return err
	})
}

// renewLeases creates the leases of the nodes of load and renews each of them every ten seconds until ctx
// is done. Without leases the nodes would become NotReady during the measurement.
func (s *controlServer) renewLeases(ctx context.Context) error {
	leases := s.client.CoordinationV1().Leases("kube-node-lease")
	duration := int32(40)
	for i := 0; ctx.Err() == nil; i++ {
		name, now := fmt.Sprintf("node-%d", i%loadNodes), metav1.NowMicro()
		var err error
		if i < loadNodes {
			_, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &duration,
					RenewTime: &now},
			}, metav1.CreateOptions{})
		} else {
			_, err = leases.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`,
				now.UTC().Format(metav1.RFC3339Micro)), metav1.PatchOptions{})
			_ = pause(ctx, time.Second)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("lease of %s: %w", name, err)
		}
	}
	return nil
}

// parallel calls do n times, at most 20 calls at a time.
func (s *controlServer) parallel(ctx context.Context, n int, do func(context.Context, int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		all.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[w] = do(ctx, i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// controlCreates measures how many objects are created per second with 20 parallel writers. The store
// syncs to disk.
func (b *bench) controlCreates(ctx context.Context) (err error) {
	s, err := startControl(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	const n = 5000
	start := time.Now()
	err = s.parallel(ctx, n, func(ctx context.Context, i int) error {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d", i)},
			Data: map[string]string{"a": "b"}}
		_, err := s.client.CoreV1().ConfigMaps("default").Create(ctx, c, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	b.add("berth-control: creates, 20 at a time", fmt.Sprintf("%.0f /s", n/time.Since(start).Seconds()), "-", "",
		"as kube-apiserver")
	return nil
}
