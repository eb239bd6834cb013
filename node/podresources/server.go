package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"berth/node/devices"
)

// The limits of requests, as upstream.
const (
	requestsPerSecond = 100
	requestBurst      = 10
)

const socketName = "kubelet.sock"

// Options configures Run. All fields are required.
type Options struct {
	Dir         string               // of the socket: <root-dir>/pod-resources
	Pods        func() []*corev1.Pod // that are not terminal
	Devices     func(pod types.UID, container string) []devices.Group
	Allocatable func() []devices.Group
	Log         *slog.Logger
}

// retryInterval is the interval of attempts to serve.
const retryInterval = 10 * time.Second

// Run serves the API until ctx ends. While another process, such as a kubelet, serves the socket, the socket is left
// alone.
func Run(ctx context.Context, o Options) {
	last := ""
	for {
		err := serve(ctx, o)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != last {
			last = text
			o.Log.Warn("pod resources not served; retrying", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryInterval):
		}
	}
}

// serve creates and serves the socket.
func serve(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return fmt.Errorf("pod resources directory: %w", err)
	}
	dir, err := os.Open(o.Dir)
	if err != nil {
		return fmt.Errorf("pod resources directory: %w", err)
	}
	defer dir.Close()
	// The path may be longer than the limit of the kernel for sockets.
	path := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), socketName)
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		return errors.Join(errors.New("another process serves the pod resources socket"), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pod resources socket: %w", err)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on pod resources socket: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limit(rate.NewLimiter(requestsPerSecond, requestBurst))))
	podresourcesv1.RegisterPodResourcesListerServer(server, &lister{o: o})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return server.Serve(ln)
}

// limit rejects requests beyond the limit.
func limit(l *rate.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !l.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return handle(ctx, q)
	}
}

// lister implements the API.
type lister struct {
	podresourcesv1.UnimplementedPodResourcesListerServer

	o Options
}

func (l *lister) List(
	context.Context, *podresourcesv1.ListPodResourcesRequest,
) (*podresourcesv1.ListPodResourcesResponse, error) {
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, pod := range l.o.Pods() {
		out.PodResources = append(out.PodResources, l.resourcesOf(pod))
	}
	return out, nil
}

func (l *lister) Get(
	_ context.Context, q *podresourcesv1.GetPodResourcesRequest,
) (*podresourcesv1.GetPodResourcesResponse, error) {
	for _, pod := range l.o.Pods() {
		if pod.Namespace == q.GetPodNamespace() && pod.Name == q.GetPodName() {
			return &podresourcesv1.GetPodResourcesResponse{PodResources: l.resourcesOf(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", q.GetPodName(), q.GetPodNamespace())
}

func (l *lister) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	return &podresourcesv1.AllocatableResourcesResponse{Devices: convert(l.o.Allocatable())}, nil
}

// resourcesOf returns the resources of a pod: of its containers and sidecars, as upstream.
func (l *lister) resourcesOf(pod *corev1.Pod) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	add := func(c *corev1.Container) {
		out.Containers = append(out.Containers, &podresourcesv1.ContainerResources{
			Name: c.Name, Devices: convert(l.o.Devices(pod.UID, c.Name))})
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func convert(groups []devices.Group) (out []*podresourcesv1.ContainerDevices) {
	for _, g := range groups {
		d := &podresourcesv1.ContainerDevices{ResourceName: string(g.Resource), DeviceIds: g.IDs}
		if len(g.NUMA) > 0 {
			d.Topology = &podresourcesv1.TopologyInfo{}
			for _, n := range g.NUMA {
				d.Topology.Nodes = append(d.Topology.Nodes, &podresourcesv1.NUMANode{ID: n})
			}
		}
		out = append(out, d)
	}
	return out
}
