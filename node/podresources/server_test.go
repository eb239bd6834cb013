package podresources

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"berth/node/devices"
)

// testOptions returns a node with pod "p", whose container "c" has two devices.
func testOptions(t *testing.T) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr") // the path of a socket must be short for the client
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "p", "uid"
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"},
		{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	return Options{
		Dir: filepath.Join(dir, "pod-resources"), Log: slog.New(slog.DiscardHandler),
		Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} },
		Devices: func(uid types.UID, container string) []devices.Group {
			if uid != "uid" || container != "c" {
				return nil
			}
			return []devices.Group{{Resource: "example.com/gpu", IDs: []string{"a", "b"}, NUMA: []int64{0, 1}}}
		},
		Allocatable: func() []devices.Group {
			return []devices.Group{{Resource: "example.com/gpu", IDs: []string{"a", "b", "c"}}}
		},
	}
}

func connect(t *testing.T, o Options) podresourcesv1.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(o.Dir, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podresourcesv1.NewPodResourcesListerClient(conn)
}

func TestPodResources(t *testing.T) {
	t.Parallel()
	o := testOptions(t)
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, socketName), nil, 0o600); err != nil { // left by a crash
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, o)
	}()
	client := connect(t, o)
	list, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.GetPodResources()) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	check := func(p *podresourcesv1.PodResources) {
		t.Helper()
		var names []string
		for _, c := range p.GetContainers() {
			names = append(names, c.GetName())
		}
		if p.GetName() != "p" || p.GetNamespace() != "ns" || !slices.Equal(names, []string{"sidecar", "c"}) {
			t.Fatalf("got %v", p)
		}
		d := p.GetContainers()[1].GetDevices()
		if len(d) != 1 || d[0].GetResourceName() != "example.com/gpu" ||
			!slices.Equal(d[0].GetDeviceIds(), []string{"a", "b"}) || len(d[0].GetTopology().GetNodes()) != 2 ||
			d[0].GetTopology().GetNodes()[1].GetID() != 1 {
			t.Errorf("got devices %v", d)
		}
	}
	check(list.GetPodResources()[0])
	one, err := client.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	check(one.GetPodResources())
	_, err = client.Get(ctx, &podresourcesv1.GetPodResourcesRequest{PodName: "p", PodNamespace: "other"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v for a pod that does not exist", err)
	}
	all, err := client.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || len(all.GetDevices()) != 1 || len(all.GetDevices()[0].GetDeviceIds()) != 3 ||
		all.GetDevices()[0].GetTopology() != nil {
		t.Errorf("got %v, %v", all, err)
	}
	if err := serve(ctx, o); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v: the socket of another process was taken", err)
	}
	stop()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the server does not stop")
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	handle := func(context.Context, any) (any, error) { return "ok", nil }
	intercept := limit(rate.NewLimiter(0, 2))
	var got []codes.Code
	for range 3 {
		_, err := intercept(t.Context(), nil, nil, handle)
		got = append(got, status.Code(err))
	}
	if !slices.Equal(got, []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted}) {
		t.Errorf("got %v", got)
	}
}
