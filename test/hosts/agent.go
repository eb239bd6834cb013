package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// AgentOptions describe an agent. Only Binary and Host are required. Empty paths are below a
// directory that the host creates for the agent.
type AgentOptions struct {
	Binary        string // see BuildBerth
	Client        string // program of Agent.Command; empty: Binary
	Host          *Host
	Name          string // name of the agent's directory, for a host with several agents; default: agent
	ManifestDir   string
	RootDir       string
	Nodefs        string // mount options of a tmpfs for the root directory, such as size=64m; empty: the host's disk
	StateDir      string
	Socket        string
	NodeName      string         // default: the host's name
	Config        map[string]any // fields of KubeletConfiguration that override the defaults of this package
	BerthConfig   map[string]any // fields of BerthConfiguration; nil removes a default of this package
	DetectNodeIPs bool           // start the agent without --node-ip
	ExtraArgs     []string
	Env           []string // added to the environment of the process
	Detached      bool     // the agent outlives this process
	KeepSockets   bool     // sockets of the agent survive it, as with FileDescriptorStoreMax= of systemd
}

// Agent is a running or stopped berth on a host.
type Agent struct {
	Host        *Host
	ManifestDir string
	RootDir     string
	StateDir    string
	Socket      string
	LogsDir     string // logs of the pods
	ConfigFile  string
	Binary      string
	Client      string   // program of Command; empty: Binary
	Args        []string // arguments of the program

	env   []string
	logf  string
	mu    sync.Mutex
	proc  *childProcess
	store *fdStore // nil: sockets do not survive the agent
}

// StartAgent writes the agent's configuration and starts it. It does not wait: see WaitReady and
// Exited. Host.Stop kills a running agent.
func StartAgent(ctx context.Context, o AgentOptions) (*Agent, error) {
	if o.Name == "" {
		o.Name = "agent"
	}
	dir := filepath.Join(o.Host.Dir, o.Name)
	short := filepath.Join(o.Host.run(), o.Name) // the path of a socket must be short
	or := func(s, other string) string {
		if s != "" {
			return s
		}
		return other
	}
	a := &Agent{
		Host: o.Host, Binary: o.Binary, Client: o.Client,
		ManifestDir: or(o.ManifestDir, filepath.Join(dir, "manifests")),
		RootDir:     or(o.RootDir, filepath.Join(dir, "kubelet")),
		StateDir:    or(o.StateDir, filepath.Join(dir, "state")),
		Socket:      or(o.Socket, short+".sock"),
		LogsDir:     filepath.Join(dir, "logs"),
		ConfigFile:  filepath.Join(dir, "config.yaml"),
		logf:        filepath.Join(dir, "berth.log"),
		env:         o.Env,
	}
	for _, d := range []string{dir, a.ManifestDir, a.RootDir, a.StateDir, a.LogsDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := a.mountRootDir(o.Nodefs); err != nil {
		return nil, err
	}
	if err := a.writeConfig(o); err != nil {
		return nil, err
	}
	if o.KeepSockets {
		var err error
		if a.store, err = openFDStore(short + ".notify"); err != nil {
			return nil, err
		}
	}
	a.Args = append([]string{
		"run", "--config", a.ConfigFile, "--root-dir", a.RootDir, "--state-dir", a.StateDir, "--socket", a.Socket,
		"--container-runtime-endpoint", o.Host.Endpoint, "--pod-manifest-path", a.ManifestDir,
		"--hostname-override", or(o.NodeName, o.Host.Name), "--cert-dir", filepath.Join(dir, "pki"),
	}, o.Host.nodeIPs(o.DetectNodeIPs)...)
	a.Args = append(a.Args, o.ExtraArgs...)
	o.Host.mu.Lock()
	o.Host.agents = append(o.Host.agents, a)
	o.Host.mu.Unlock()
	return a, a.Start(ctx)
}

// mountRootDir makes the root directory a shared mount. On a machine with private mounts, volumes
// could otherwise not propagate.
func (a *Agent) mountRootDir(nodefs string) error {
	if a.Host.slot.LAN > 0 {
		return nil // the agent does it itself in the host's mount namespace
	}
	from, kind, flags := a.RootDir, "", uintptr(unix.MS_BIND)
	if nodefs != "" {
		from, kind, flags = "tmpfs", "tmpfs", 0
	}
	if err := unix.Mount(from, a.RootDir, kind, flags, nodefs); err != nil {
		return fmt.Errorf("mount %s: %w", a.RootDir, err)
	}
	if err := a.Host.AddMountRoot(a.RootDir); err != nil {
		return err
	}
	if err := unix.Mount("", a.RootDir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share %s: %w", a.RootDir, err)
	}
	return nil
}

func (a *Agent) writeConfig(o AgentOptions) error {
	kubelet := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"cgroupRoot": a.Host.CgroupRoot, "cgroupDriver": "cgroupfs", "podLogsDir": a.LogsDir,
		"healthzPort": 0, "failSwapOn": false, "failCgroupV1": false,
		"address": a.Host.Gateway.String(), // port 10250 of each host
		// Disk usage of the machine must not affect tests.
		"evictionHard": map[string]string{"memory.available": "100Mi"}, "imageGCHighThresholdPercent": 100,
	}
	maps.Copy(kubelet, o.Config)
	berth := map[string]any{
		"apiVersion": "berth.dev/v1alpha1", "kind": "BerthConfiguration",
		"cniConfDir": a.Host.ConfDir, "cniBinDirs": []string{a.Host.BinDir},
		"startPressurePercent": 100, // CPU pressure of the machine must not affect tests
	}
	if a.Host.slot.record.LAN == 0 { // hosts without a network namespace would share the rules and the address
		berth["serviceProxy"], berth["clusterDNSServer"] = "off", "off"
	}
	maps.Copy(berth, o.BerthConfig)
	maps.DeleteFunc(berth, func(_ string, v any) bool { return v == nil })
	kubeletYAML, err := yaml.Marshal(kubelet)
	if err != nil {
		return err
	}
	berthYAML, err := yaml.Marshal(berth)
	if err != nil {
		return err
	}
	return os.WriteFile(a.ConfigFile, append(append(kubeletYAML, "---\n"...), berthYAML...), 0o644)
}

// Start starts the agent again after it exited.
func (a *Agent) Start(context.Context) error {
	join, err := a.Host.joinScript()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(a.logf, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	script := join + `exec "$@"`
	a.mu.Lock()
	env := append(append(os.Environ(), "NOTIFY_SOCKET="), a.env...)
	a.mu.Unlock()
	var inherited []*os.File
	if a.store != nil {
		var more []string
		inherited, more = a.store.pass()
		env, script = append(env, more...), join+`export LISTEN_PID=$$; exec "$@"`
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh", a.Binary}, a.Args...)...)
	cmd.Env, cmd.ExtraFiles = env, inherited
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	proc, err := startChild(cmd)
	if err != nil {
		return fmt.Errorf("start berth: %w", err)
	}
	a.mu.Lock()
	a.proc = proc
	a.mu.Unlock()
	return nil
}

// SetEnv replaces the Env of the options from the next Start on.
func (a *Agent) SetEnv(env ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.env = env
}

func (a *Agent) process() *childProcess {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proc
}

// Pid returns the process ID of the agent. 0: it was never started.
func (a *Agent) Pid() int {
	if p := a.process(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Exited returns a channel that is closed when the process has exited.
func (a *Agent) Exited() <-chan struct{} { return a.process().done }

// Wait returns the exit error of the process: nil for exit code 0.
func (a *Agent) Wait(ctx context.Context) error {
	p := a.process()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the agent to exit: %w", ctx.Err())
	}
}

// Kill9 ends the agent with SIGKILL. Its pods keep running.
func (a *Agent) Kill9() error {
	p := a.process()
	if p == nil {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.done
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop sends SIGTERM to the agent and waits until it has exited. Its pods keep running. An exit
// code other than 0 is an error. If the agent does not exit, the error contains its goroutine stacks.
func (a *Agent) Stop(ctx context.Context) error {
	p := a.process()
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := a.Wait(ctx)
	if err == nil {
		return nil
	}
	tail := logTail(a.logf)
	if ctx.Err() != nil {
		tail = a.goroutines(p)
	}
	return fmt.Errorf("stop berth: %w\n%s", err, tail)
}

// goroutines ends the agent with SIGQUIT and returns what it logs from then on: the stacks of all
// goroutines.
func (a *Agent) goroutines(p *childProcess) string {
	before, err := os.Stat(a.logf)
	if err == nil {
		err = p.cmd.Process.Signal(unix.SIGQUIT)
	}
	if err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), dumpTimeout)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	text, err := os.ReadFile(a.logf)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, before.Size()-8<<10):])
}

// dumpTimeout limits the wait for the stacks of an agent that does not exit.
const dumpTimeout = 30 * time.Second

// Restart stops the agent, starts it and waits until it is ready.
func (a *Agent) Restart(ctx context.Context) error {
	if err := a.Stop(ctx); err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	return a.WaitReady(ctx)
}

// WaitReady waits until the agent accepts connections on its socket.
func (a *Agent) WaitReady(ctx context.Context) error {
	return WaitFor(ctx, "berth to listen on "+a.Socket, func() (bool, error) {
		p := a.process()
		select {
		case <-p.done:
			return false, fmt.Errorf("berth exited: %v\n%s", p.err, logTail(a.logf)) //nolint:errorlint // nil too
		default:
		}
		c, err := net.Dial("unix", a.Socket)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, c.Close()
	})
}

// Command returns a call of another command of the program on this agent's node.
func (a *Agent) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cmp.Or(a.Client, a.Binary), append([]string{"--socket", a.Socket}, args...)...)
	cmd.Env = append(os.Environ(), fewCollections()...)
	return cmd
}

// Log returns the log of the agent over all its starts.
func (a *Agent) Log() string {
	text, err := os.ReadFile(a.logf)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
