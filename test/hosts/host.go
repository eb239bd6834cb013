package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/images"
)

// Options describe a host. The zero value is a host with Debian's containerd and no network.
type Options struct {
	Version Version
	// Dir holds images, containers and logs. Empty: a new directory. Stop empties it, and
	// removes it if it was new.
	Dir string
	// Disk is the mount options of a tmpfs, such as size=64m, for images and the writable layers
	// of containers. Empty: the machine's disk. See Host.Root.
	Disk string
	// Images are archives to import. The pause image is always imported.
	Images []string
	// CNI writes the network configuration at the start. Otherwise call WriteCNI.
	CNI bool
	// PodCIDR replaces the IPv4 range that follows from the host's number.
	PodCIDR netip.Prefix
	// Registries maps host names of registries to the content of hosts.toml.
	Registries map[string]string
	// Handlers are the names of further runc handlers for RuntimeClasses. Each has its own
	// directory of containers, see HandlerDir.
	Handlers []string
	// LAN is a network to connect the host to. Containerd and agents of such a host run in its
	// own network and mount namespaces. It has no bridge before its pod network creates one, and
	// supports neither Detached nor PowerLoss.
	LAN *LAN
	// Detached hosts outlive the process that created them: see OpenDetached.
	Detached bool
	// Owner is the owner name of a detached host: see OpenDetached.
	Owner string
}

// Host is a private containerd with its network.
type Host struct {
	*slot
	Name       string
	Version    Version
	Dir        string
	Socket     string // path of containerd's socket
	Endpoint   string // the socket as a unix:// URL
	ConfDir    string // CNI configuration
	BinDir     string // CNI plugins
	CgroupRoot string // cgroupRoot of the agent; parent of the cgroups of other sandboxes
	PodCIDR    netip.Prefix
	Bridge     string
	Gateway    netip.Addr // non-loopback address of this machine
	Runtime    runtimeapi.RuntimeServiceClient
	Image      runtimeapi.ImageServiceClient

	conn   *grpc.ClientConn
	mu     sync.Mutex
	daemon *childProcess // the running containerd; nil: none, or not started by this process
	agents []*Agent

	stoppedLeaks *[]string // leaks after Stop; nil: not stopped
}

// childProcess is a child process with a goroutine that waits for it.
type childProcess struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done
}

// Start creates a host and waits until its runtime is ready. When it fails, nothing remains.
func Start(ctx context.Context, o Options) (*Host, error) {
	if o.Version == "" {
		o.Version = Version16
	}
	s, err := claim()
	if err != nil {
		return nil, fmt.Errorf("start a host: %w", err)
	}
	h := &Host{slot: s}
	if err := h.start(ctx, o); err != nil {
		err = fmt.Errorf("start %s with containerd %s: %w", s.name(), o.Version, err)
		return nil, errors.Join(err, h.Stop())
	}
	return h, nil
}

func (h *Host) start(ctx context.Context, o Options) error {
	r := &h.slot.record
	if err := h.initRecord(o); err != nil {
		return err
	}
	if err := h.createDirs(o); err != nil {
		return err
	}
	connect := func(context.Context) error { return r.makeBridge() }
	if r.LAN > 0 {
		connect = h.connectLAN
	}
	if err := connect(ctx); err != nil {
		return err
	}
	if o.CNI {
		if err := h.WriteCNI(); err != nil {
			return err
		}
	}
	dir, err := images.CacheDir()
	if err != nil {
		return err
	}
	pause, err := images.Pause(ctx, dir)
	if err != nil {
		return err
	}
	archives := append([]string{pause.Path}, o.Images...)
	if o.Disk == "" {
		return h.startWithImages(ctx, archives)
	}
	if err := h.Restart(ctx); err != nil {
		return err
	}
	return h.Import(ctx, archives...)
}

// initRecord stores in the record what teardown has to remove, before any of it exists.
func (h *Host) initRecord(o Options) (err error) {
	r := &h.slot.record
	r.Version, r.Dir, r.PodCIDR, r.CNI, r.Detached, r.For = o.Version, o.Dir, o.PodCIDR, o.CNI, o.Detached, o.Owner
	r.Handlers, r.Disk = o.Handlers, o.Disk != ""
	if o.LAN != nil {
		r.LAN = o.LAN.n + 1
	}
	r.Sandbox = images.PauseRef
	if !r.PodCIDR.IsValid() {
		r.PodCIDR = r.podRange()
	}
	if r.Dir == "" {
		r.OwnDir = true
		if r.Dir, err = os.MkdirTemp("", r.name()+"-"); err != nil {
			return err
		}
	}
	if err := h.write(); err != nil {
		return err
	}
	if r.Detached && h.lock != nil { // from here on the record alone reserves the slot
		os.Remove(slotLock(r.Number))
		h.lock.Close()
		h.lock = nil
	}
	return h.setFields()
}

// createDirs creates the host's directories and the files that containerd reads.
func (h *Host) createDirs(o Options) error {
	r := &h.slot.record
	for _, dir := range []string{r.root(), r.state(), r.shimSockets(), filepath.Join(r.run(), "tmp"), r.confDir(),
		r.plugins(), r.addresses(), r.certsDir()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if o.Disk != "" {
		if err := unix.Mount("tmpfs", r.root(), "tmpfs", 0, o.Disk); err != nil {
			return fmt.Errorf("mount %s: %w", r.root(), err)
		}
		if err := h.AddMountRoot(r.root()); err != nil {
			return err
		}
	}
	for host, toml := range o.Registries {
		if err := h.SetRegistry(host, toml); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(r.configFile(), []byte(r.config()), 0o600), r.makePlugins(), r.makeCgroups())
}

// setFields sets the exported fields from the record.
func (h *Host) setFields() (err error) {
	r := &h.slot.record
	h.Name, h.Version, h.Dir, h.Socket, h.Endpoint = r.name(), r.Version, r.Dir, r.socket(), "unix://"+r.socket()
	h.ConfDir, h.BinDir, h.CgroupRoot = r.confDir(), r.plugins(), "/"+r.name()
	h.PodCIDR, h.Bridge, h.Gateway = r.PodCIDR, r.bridge(), r.gateway()
	if r.LAN > 0 {
		h.Gateway = r.lan4()
	}
	h.conn, err = grpc.NewClient(h.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	h.Runtime, h.Image = runtimeapi.NewRuntimeServiceClient(h.conn), runtimeapi.NewImageServiceClient(h.conn)
	return nil
}

// OpenDetached returns the detached hosts of this machine with the given owner.
func OpenDetached(owner string) ([]*Host, error) {
	all, err := records()
	if err != nil {
		return nil, err
	}
	var out []*Host
	for _, r := range all {
		if !r.Detached || r.For != owner {
			continue
		}
		h := &Host{slot: &slot{record: *r}}
		if err := h.setFields(); err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

// AddMountRoot assigns the mounts below a directory to the host: Stop unmounts them and Leaks
// lists them. StartAgent calls it for the directories of the agent.
func (h *Host) AddMountRoot(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slot.Below = append(h.slot.Below, dir)
	return h.write()
}

// Kill ends containerd with SIGKILL. Shims and containers keep running.
func (h *Host) Kill() error {
	h.mu.Lock()
	proc := h.daemon
	h.daemon = nil
	h.mu.Unlock()
	if proc == nil {
		return nil
	}
	err := proc.cmd.Process.Kill()
	<-proc.done
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Pid returns the process ID of containerd. 0: it does not run, or another process started it.
func (h *Host) Pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.daemon == nil {
		return 0
	}
	return h.daemon.cmd.Process.Pid
}

// Restart kills containerd if it runs, starts it and waits until it is ready.
func (h *Host) Restart(ctx context.Context) error {
	if err := h.Kill(); err != nil {
		return err
	}
	program, err := h.program(ctx)
	if err != nil {
		return err
	}
	path := filepath.Dir(program)
	join, err := h.joinScript()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(h.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", "-c", join+`exec "$@"`, "sh", program, "--config", h.configFile())
	cmd.Env = append(os.Environ(), "PATH="+path+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"NOTIFY_SOCKET=")
	cmd.Env = append(cmd.Env, fewCollections()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	proc, err := startChild(cmd)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.daemon = proc
	h.mu.Unlock()
	return h.ready(ctx, proc)
}

// fewCollections returns, in tests, environment variables for Go programs: no garbage collection up to a memory
// limit. Shims, runc and CNI plugins inherit them from containerd. Most of their runs only start and end, and take
// a quarter less CPU time. Benchmarks measure the programs as they are.
func fewCollections() []string {
	if !testing.Testing() {
		return nil
	}
	return []string{"GOGC=off", "GOMEMLIMIT=256MiB"}
}

// program returns the path of containerd.
func (h *Host) program(ctx context.Context) (string, error) {
	if h.Version != Version2 {
		return "/usr/bin/containerd", nil
	}
	dir, err := Containerd2(ctx)
	return filepath.Join(dir, "containerd"), err
}

// Upgrade kills containerd and starts another version on the same directories, as a package upgrade
// does. Shims and containers keep running.
func (h *Host) Upgrade(ctx context.Context, to Version) error {
	if err := h.Kill(); err != nil {
		return err
	}
	h.mu.Lock()
	h.slot.Version, h.slot.Upgraded, h.Version = to, true, to
	err := errors.Join(h.write(), os.WriteFile(h.configFile(), []byte(h.config()), 0o600))
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.Restart(ctx)
}

// startChild starts a process and a goroutine that waits for it.
func startChild(cmd *exec.Cmd) (*childProcess, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	e := &childProcess{cmd: cmd, done: make(chan struct{})}
	go func() {
		e.err = cmd.Wait()
		close(e.done)
	}()
	return e, nil
}

// ready waits for the condition RuntimeReady. The network need not be ready.
func (h *Host) ready(ctx context.Context, proc *childProcess) error {
	var lastErr error
	err := WaitFor(ctx, "containerd", func() (bool, error) {
		select {
		case <-proc.done:
			log := logTail(h.log())
			return false, fmt.Errorf("containerd exited: %v\n%s", proc.err, log) //nolint:errorlint // nil too
		default:
		}
		callCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		st, err := h.Runtime.Status(callCtx, &runtimeapi.StatusRequest{})
		if lastErr = err; err != nil {
			h.conn.ResetConnectBackoff()
			return false, nil
		}
		for _, c := range st.Status.Conditions {
			if c.Type == runtimeapi.RuntimeReady && c.Status {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil && lastErr != nil {
		err = fmt.Errorf("%w (%w)\n%s", err, lastErr, logTail(h.log()))
	}
	return err
}

// Root returns containerd's directory of images and writable layers.
func (h *Host) Root() string { return h.slot.root() }

// Log returns the end of containerd's log.
func (h *Host) Log() string { return logTail(h.log()) }

func logTail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if cut := len(text) - 8<<10; cut > 0 {
		text = text[cut:]
	}
	return string(text)
}

var unpacking = regexp.MustCompile(`(?m)^unpacking (\S+) \(`)

// Import loads image archives and waits until the CRI plugin lists the images.
func (h *Host) Import(ctx context.Context, archives ...string) error {
	for _, a := range archives {
		out, err := h.Ctr(ctx, "images", "import", a)
		if err != nil {
			return fmt.Errorf("import %s: %w: %s", a, err, strings.TrimSpace(out))
		}
		for _, m := range unpacking.FindAllStringSubmatch(out, -1) {
			if err := h.waitImage(ctx, m[1]); err != nil {
				return fmt.Errorf("import %s: %w", a, err)
			}
		}
	}
	return nil
}

// Ctr runs the ctr of the host's containerd in the namespace of the CRI plugin and returns its output.
func (h *Host) Ctr(ctx context.Context, args ...string) (string, error) {
	program, err := h.program(ctx)
	if err != nil {
		return "", err
	}
	ctr := filepath.Join(filepath.Dir(program), "ctr")
	out, err := exec.CommandContext(ctx, ctr, append([]string{"-a", h.Socket, "-n", "k8s.io"}, args...)...).
		CombinedOutput()
	return string(out), err
}

func (h *Host) waitImage(ctx context.Context, ref string) error {
	return WaitFor(ctx, "image "+ref, func() (bool, error) {
		st, err := h.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		return err == nil && st.Image != nil, err
	})
}
