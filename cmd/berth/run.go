package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/agent/allocator"
	"berth/agent/checkpoint"
	"berth/agent/eviction"
	"berth/agent/localworkloads"
	"berth/agent/podlogs"
	"berth/agent/shutdown"
	"berth/agent/source"
	"berth/agent/status/events"
	"berth/images/offline"
	"berth/internal/nodeconfig"
	"berth/internal/telemetry"
	"berth/node"
	"berth/node/devices"
	"berth/node/stats"
	"berth/nodeapi"
	"berth/nodeapi/server"
	"berth/probes"
	"berth/probes/exectracker"
	"berth/systemd"
	"berth/volumes/csi"
	"berth/volumes/local"
)

func runCommand() *cobra.Command {
	flags := &nodeconfig.Flags{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the node agent",
		Long: `Run the node agent in the foreground: run pods from a directory of manifest files or from an API server
through containerd. systemd runs it as a service. Stopping the agent does not stop pods. SIGHUP (systemctl
reload berth) reloads the configuration.`,
		Example: `  berth run --pod-manifest-path /etc/berth/pods
  berth run --config /etc/berth/config.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runAndReload(cmd.Context(), flags)
		},
	}
	flags.AddTo(cmd.Flags())
	return cmd
}

// berth is the agent with all its components.
type berth struct {
	config                *nodeconfig.Config
	log                   *slog.Logger
	logLevel              *slog.LevelVar
	metrics               *telemetry.Metrics
	traces                *telemetry.Traces
	host                  *host
	runtime               *runtime
	offline               *offline.Importer
	drain                 *shutdown.Manager
	startedDuringShutdown bool            // started during a system shutdown
	serveCtx              context.Context // context of serve, for work that outlives a request
	store                 *checkpoint.Store
	events                *events.Recorder
	directory             *source.Directory      // nil: no manifest directory
	workloads             *localworkloads.Source // nil: no manifest directory
	services              *nodeServices
	sockets               *systemd.Sockets // of the DNS server; they outlive the process or its program
	probes                *probes.Manager
	execs                 *exectracker.Tracker
	agent                 *agent.Agent
	podLogs               *podlogs.Logs
	devices               *devices.Manager
	csi                   *csi.Manager
	localVolumes          *local.Driver
	admissionNode         *allocator.NodeState
	stats                 *stats.Collector
	pressure              *eviction.Monitor
	reclaimer             *eviction.Reclaimer
	limits                *eviction.LocalStorageEnforcer
	fileSystems           *node.FileSystems
	diskPressure          atomic.Bool   // under disk pressure: terminated containers are removed immediately
	memoryAlarm           chan struct{} // memory pressure notifications of the kernel; capacity 1
	cluster               *cluster      // nil: standalone
	server                apiServerFuncs
	loops                 systemd.LoopMonitor
	loopsByName           sync.Map // *systemd.Loop by name
	watchdog              *systemd.Watchdog
}

// run assembles the agent and runs it until ctx ends. Pods keep running.
func run(ctx context.Context, config *nodeconfig.Config, warnings []string, sockets *systemd.Sockets) error {
	level := &slog.LevelVar{}
	log, err := telemetry.NewLog(
		telemetry.LogOptions{Format: config.LogFormat, Verbosity: config.Verbosity, Level: level},
	)
	if err != nil {
		return err
	}
	log.Info("agent starting", "version", version, "node", config.NodeName)
	for _, w := range warnings {
		log.Warn("configuration warning", "message", w)
	}
	b := &berth{config: config, log: log, logLevel: level, sockets: sockets}
	if config.Server.ContentionProfiles {
		goruntime.SetBlockProfileRate(1)
	}
	if err := b.assemble(ctx); err != nil {
		return err
	}
	defer b.close()
	return b.serve(ctx)
}

// init makes this program able to check the local store: checkpoint.Open executes it again for that.
func init() { checkpoint.RunCheckProcess() }

// openStore starts to open the local store. The check of its file runs in a child process and
// overlaps with other parts of the start. The returned function waits for the result.
func (b *berth) openStore() (wait func() (*checkpoint.Store, *checkpoint.Quarantined, error)) {
	var store *checkpoint.Store
	var quarantined *checkpoint.Quarantined
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		store, quarantined, err = checkpoint.Open(checkpoint.Options{
			Path: filepath.Join(b.config.StateDir, nodeconfig.StoreFile), Log: b.log,
			Heartbeat: func() { b.heartbeat(storeLoop) },
		})
	}()
	return func() (*checkpoint.Store, *checkpoint.Quarantined, error) {
		<-done
		return store, quarantined, err
	}
}

// assemble creates all components without starting them.
func (b *berth) assemble(ctx context.Context) (err error) {
	openedStore := b.openStore()
	if b.traces, err = telemetry.NewTraces(
		ctx, telemetry.TraceOptions{Node: b.config.NodeName, Version: version},
	); err != nil {
		b.log.Warn("tracing disabled", "err", err) // tracing is optional
	}
	b.metrics = telemetry.NewMetrics(
		b.config.NodeName,
		telemetry.Build{Version: version, Commit: commit, Date: date, Kubernetes: node.KubernetesVersion()},
	)
	if b.runtime, err = newRuntime(ctx, b); err != nil {
		return err
	}
	b.offline = b.newOffline()
	if b.host, err = newHost(ctx, b); err != nil {
		return err
	}
	var quarantined *checkpoint.Quarantined
	b.store, quarantined, err = openedStore()
	if err != nil {
		return fmt.Errorf("open the local store: %w", err)
	}
	if quarantined != nil {
		b.log.Warn("local store unusable and replaced, restoring pods from the runtime and the manifests",
			"quarantined", quarantined.String())
	}
	records, err := b.store.Load()
	if err != nil {
		b.log.Warn("local store partially unreadable", "err", err)
	}
	b.host.restoreOwners(b.store, records)
	b.events = events.NewRecorder(events.RecorderOptions{Host: b.config.NodeName})
	b.execs = newExecTracker(b)
	b.probes = newProbes(b)
	b.newNodeServices()
	b.removeRoutes()
	if !b.config.Standalone() {
		if b.cluster, err = newCluster(b, records); err != nil {
			return err
		}
		b.server = b.cluster.apiServerFuncs()
	}
	if b.watchdog, err = systemd.WatchdogFromEnvironment(); err != nil {
		b.log.Warn("watchdog disabled: invalid environment", "err", err)
		b.watchdog = &systemd.Watchdog{}
	}
	b.devices = newDevices(b, records)
	b.persistSocketDirs()
	b.makeArchiveDir()
	b.startedDuringShutdown = b.shuttingDown(ctx)
	b.agent = newAgent(b, records)
	b.newCSI()
	b.admissionNode = allocator.NewNodeState(b.initialNode(), b.agent.SetNode)
	b.podLogs = b.newPodLogs()
	b.stats = b.newStats()
	b.limits = b.newLimits()
	b.pressure = b.newPressure()
	b.drain = b.newDrain()
	if b.cluster != nil {
		b.agent.StatusCache.OnChange = b.cluster.statusManager.SetPodStatus
	}
	b.metrics.RegisterState(b.metricsState)
	return nil
}

func (b *berth) close() {
	b.runtime.images.Close()
	err := errors.Join(b.runtime.client.Close(), b.store.Close(), b.traces.Shutdown(context.Background()))
	if err != nil {
		b.log.Warn("components could not be closed", "err", err)
	}
}

// serve starts all components and waits for them.
func (b *berth) serve(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(b.config.Socket), 0o755); err != nil {
		return fmt.Errorf("directory of the local socket: %w", err)
	}
	local, err := nodeapi.Listen(b.config.Socket)
	if err != nil {
		return err
	}
	var health net.Listener
	if b.config.Healthz.Port > 0 {
		at := net.JoinHostPort(b.config.Healthz.Address.String(), fmt.Sprint(b.config.Healthz.Port))
		if health, err = new(net.ListenConfig).Listen(ctx, "tcp", at); err != nil {
			return errors.Join(fmt.Errorf("health port: %w", err), local.Close())
		}
	}
	remote, api, err := b.nodeAPI(ctx)
	if err != nil {
		return errors.Join(err, local.Close(), closeIf(health))
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	b.serveCtx = ctx
	components := &group{stop: stop, running: map[string]bool{}}
	storeCtx, closeStore := context.WithCancel(context.WithoutCancel(ctx))
	var store sync.WaitGroup
	store.Go(func() { // stops after the agent, whose final records it writes
		if err := b.store.Run(storeCtx); err != nil {
			b.log.Warn("local store failed", "err", err)
		}
	})
	components.run("local socket", func() error { return nodeapi.Serve(ctx, local, b.handlers()) })
	if health != nil {
		components.run("health port", func() error { return nodeapi.ServeHealth(ctx, health, b.health()) })
	}
	if remote != nil {
		components.run("node API", func() error { return server.Serve(ctx, remote, api) })
	}
	components.run("runtime watch", func() error { return b.runtime.watch(ctx) })
	components.run("exits", func() error { return b.runtime.exits.Run(ctx) })
	components.run("addresses", func() error { return b.watchAddresses(ctx) })
	components.run("control plane watch", func() error { return b.watchControlPlane(ctx) })
	components.run("network watch", func() error { return b.host.network.Run(ctx, b.runtime.networkChanged) })
	components.run("network check", func() error { b.checkNetworks(ctx); return nil })
	components.run("image garbage", func() error { b.collectImages(ctx); return nil })
	components.run("shutdown", func() error { b.watchShutdown(ctx); return nil })
	components.run("offline images", func() error { b.offline.Run(ctx); return nil })
	components.run("logs", func() error { b.rotateLogs(ctx); return nil })
	components.run("pressure", func() error { b.pressure.Run(ctx); return nil })
	components.run("memory alarm", func() error { b.watchMemory(ctx); return nil })
	components.run("limits", func() error { b.limits.Run(ctx); return nil })
	components.run("log garbage", func() error { b.logCollector().Run(ctx); return nil })
	components.run("plugin watcher", func() error { return b.pluginWatcher().Run(ctx) })
	components.run("pod resources", func() error { return b.runPodResources(ctx) })
	components.run("CSI drivers", func() error { return b.csi.Run(ctx) })
	components.run("device plugins", func() error { return b.runDevices(ctx) })
	components.run("service manager", func() error { b.notify(ctx); return nil })
	components.run("memory", func() error {
		node.TrimMemory(ctx, b.agent.Ready(), func(err error) { b.log.Debug("memory release failed", "err", err) })
		return nil
	})
	components.run("commands", func() error { return b.execs.Run(ctx) })
	components.run("probes", func() error { return b.probes.Run(ctx) })
	if b.cluster != nil {
		b.cluster.start(ctx, components)
		components.run("network status", func() error { b.cluster.reportNetworks(ctx); return nil })
	}
	b.services.start(ctx, components)
	components.run("agent", func() error { return b.agent.Run(ctx) })
	err = components.wait(ctx, b.log)
	closeStore()
	store.Wait()
	b.log.Info("agent stopped, pods keep running")
	return err
}

func closeIf(ln net.Listener) error {
	if ln == nil {
		return nil
	}
	return ln.Close()
}

// group runs components that stop together: the first failure stops all.
type group struct {
	stop    context.CancelCauseFunc
	wg      sync.WaitGroup
	mu      sync.Mutex
	running map[string]bool // by name
	err     error
}

func (g *group) run(name string, f func() error) {
	g.mu.Lock()
	g.running[name] = true
	g.mu.Unlock()
	g.wg.Go(func() {
		err := f()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.running, name)
		if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) {
			return
		}
		if g.err == nil {
			g.err = fmt.Errorf("%s: %w", name, err)
		}
		g.stop(err)
	})
}

// stopReportInterval is how often components that are still running after the stop are logged.
const stopReportInterval = 10 * time.Second

// wait returns when all components have stopped. Once ctx is done, it logs those that take long.
func (g *group) wait(ctx context.Context, log *slog.Logger) error {
	stopped := make(chan struct{})
	go func() {
		g.wg.Wait()
		close(stopped)
	}()
	defer func() { <-stopped }()
	select {
	case <-stopped:
		return g.err
	case <-ctx.Done():
	}
	log.Info("agent stopping")
	for {
		select {
		case <-stopped:
			return g.err
		case <-time.After(stopReportInterval):
			g.mu.Lock()
			names := slices.Sorted(maps.Keys(g.running))
			g.mu.Unlock()
			log.Warn("components have not stopped yet", "components", names)
		}
	}
}

// convertAll converts the elements of a list to the type of another package.
func convertAll[T, U any](list []T, convert func(T) U) []U {
	out := make([]U, 0, len(list))
	for _, x := range list {
		out = append(out, convert(x))
	}
	return out
}
