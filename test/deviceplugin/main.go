// Command deviceplugin is a device plugin for tests. Each of its devices is the host's /dev/null with another
// name.
//
//	deviceplugin DIR RESOURCE COUNT [quiet]
//
// DIR is the directory of the sockets. With quiet, the plugin does not require PreStartContainer. It registers
// whenever kubelet.sock is created in DIR and prints a line when it has registered. Lines on standard input
// change its devices: "unhealthy null-0" and "healthy null-0" set the health of a device, "refuse TEXT" makes
// all Allocate calls fail with TEXT, and "refuse" ends that. The plugin exits at the end of its input.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "deviceplugin:", err)
		os.Exit(1)
	}
}

const (
	kubelet  = "kubelet.sock"
	endpoint = "null.sock"
)

// plugin implements the device plugin API.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	resource string
	quiet    bool

	mu        sync.Mutex
	count     int
	unhealthy []string
	refuse    string
	changed   chan struct{} // closed and replaced on every change
}

func run(args []string) error {
	quiet := len(args) == 4 && args[3] == "quiet"
	if len(args) != 3 && !quiet {
		return errors.New("want DIR RESOURCE COUNT [quiet]")
	}
	count, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p := &plugin{resource: args[1], quiet: quiet, count: count, changed: make(chan struct{})}
	if err := os.MkdirAll(args[0], 0o750); err != nil {
		return err
	}
	// Relative socket paths: absolute ones may exceed the maximum length of a socket address.
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := watch.Add("."); err != nil {
		return err
	}
	input := make(chan string)
	go read(input)
	server := p.serve(nil)
	register := make(chan struct{}, 1)
	if _, err := os.Stat(kubelet); err == nil {
		register <- struct{}{}
	}
	for {
		select {
		case line, more := <-input:
			if !more {
				server.Stop()
				return nil
			}
			p.change(line)
		case e := <-watch.Events:
			if strings.TrimPrefix(e.Name, "./") == kubelet && e.Has(fsnotify.Create) {
				server = p.serve(server) // the agent has removed the socket
				select {
				case register <- struct{}{}:
				default:
				}
			}
		case <-register:
			if err := p.register(); err != nil {
				fmt.Println("not registered:", err)
				time.AfterFunc(100*time.Millisecond, func() {
					select {
					case register <- struct{}{}:
					default:
					}
				})
				continue
			}
			fmt.Println("registered")
		}
	}
}

func read(to chan<- string) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		to <- lines.Text()
	}
	close(to)
}

// change applies a line of input.
func (p *plugin) change(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "unhealthy":
		p.unhealthy = append(p.unhealthy, rest)
	case "healthy":
		p.unhealthy = slices.DeleteFunc(p.unhealthy, func(id string) bool { return id == rest })
	case "refuse":
		p.refuse = rest
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// serve stops an old server and serves on a new socket.
func (p *plugin) serve(old *grpc.Server) *grpc.Server {
	if old != nil {
		old.Stop()
	}
	_ = os.Remove(endpoint) // left by a previous process
	ln, err := net.Listen("unix", endpoint)
	if err != nil {
		fmt.Fprintln(os.Stderr, "deviceplugin:", err)
		os.Exit(1)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, p)
	go func() { _ = s.Serve(ln) }()
	return s
}

func (p *plugin) register() error {
	conn, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: p.resource,
	})
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: !p.quiet}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		list := &pluginapi.ListAndWatchResponse{}
		p.mu.Lock()
		for i := range p.count {
			d := &pluginapi.Device{ID: "null-" + strconv.Itoa(i), Health: pluginapi.Healthy}
			if slices.Contains(p.unhealthy, d.ID) {
				d.Health = pluginapi.Unhealthy
			}
			list.Devices = append(list.Devices, d)
		}
		changed := p.changed
		p.mu.Unlock()
		if err := to.Send(list); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.mu.Lock()
	refuse := p.refuse
	p.mu.Unlock()
	if refuse != "" {
		return nil, errors.New(refuse)
	}
	out := &pluginapi.AllocateResponse{}
	for _, c := range q.ContainerRequests {
		ids := c.DevicesIds
		fmt.Println("allocate", strings.Join(ids, ","))
		a := &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"NULL_DEVICES": strings.Join(ids, ",")},
			Mounts: []*pluginapi.Mount{{ContainerPath: "/etc/of-the-host", HostPath: "/etc/hostname",
				ReadOnly: true}},
			Annotations: map[string]string{"example.com/devices": strings.Join(ids, ",")},
		}
		for _, id := range ids {
			a.Devices = append(a.Devices, &pluginapi.DeviceSpec{HostPath: "/dev/null", ContainerPath: "/dev/" + id,
				Permissions: "rw"})
		}
		out.ContainerResponses = append(out.ContainerResponses, a)
	}
	return out, nil
}

func (p *plugin) PreStartContainer(_ context.Context,
	q *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	fmt.Println("start", strings.Join(q.DevicesIds, ","))
	return &pluginapi.PreStartContainerResponse{}, nil
}
