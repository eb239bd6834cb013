package check

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"berth/cri"
)

// Thresholds and measured figures of the checks of costs.
const (
	// minStatsPeriod is the shortest period in which the runtime may read the usage of all containers.
	minStatsPeriod = 10 * time.Second
	// statsCostPerPod is the CPU time of one read of the usage of a pod with one container. With 50 idle
	// pods and a period of one second, containerd 2.4 used 5 % of a core.
	statsCostPerPod = time.Millisecond
	// maxUnpackedLayers is the size in bytes of unpacked layers that is not worth a warning.
	maxUnpackedLayers = 100 << 20
	// startCalls is how often containerd executes the OCI runtime in the life of a container: create,
	// start and delete.
	startCalls = 3
)

// costs is what on the host makes pods cost more than they must.
type costs struct {
	config     cri.Costs
	pods       int // in the runtime
	layers     cri.UnpackedLayers
	ociRuntime programCost // the OCI runtime in use
	crun       programCost // installed beside it; an empty path: not installed
}

// programCost is the duration of the shortest call of a program.
type programCost struct {
	path string
	took time.Duration
}

// checkCosts checks the configuration of containerd and of its OCI runtime. None of it is essential.
func (c Node) checkCosts(ctx context.Context, add AddFunc) {
	var k costs
	var err error
	if k.config, err = c.Runtime.Costs(ctx); err != nil {
		return // the check of the runtime reports it
	}
	if pods, err := c.Runtime.Pods(ctx); err == nil {
		k.pods = len(pods)
	}
	if k.layers, err = c.Runtime.UnpackedLayers(ctx); err != nil {
		add("image layers", false, err, "", "see the log of the runtime")
	}
	if filepath.Base(k.config.OCIRuntime) == "runc" {
		k.ociRuntime = measureProgram(ctx, k.config.OCIRuntime)
		k.crun = measureProgram(ctx, "crun")
	}
	k.report(add)
}

// report adds a result for each cost.
func (k costs) report(add AddFunc) {
	if period := k.config.StatsPeriod; period > 0 {
		share := 100 * float64(k.pods) * statsCostPerPod.Seconds() / period.Seconds()
		detail := fmt.Sprintf("containerd reads the CPU usage of all containers every %s", period)
		var err error
		if period < minStatsPeriod {
			full := 100 * 50 * statsCostPerPod.Seconds() / period.Seconds()
			err = fmt.Errorf("%s: about %.1f %% of a core with the %d pods of this node, %.0f %% with 50 pods",
				detail, share, k.pods, full)
		}
		add("runtime statistics", false, err, detail, `set stats_collect_period = "1m" below `+
			`[plugins."io.containerd.cri.v1.runtime"] in the configuration of containerd: berth reads usage itself`)
	}
	if k.layers.Layers > 0 {
		detail := fmt.Sprintf("%d unpacked layers use %d MiB in compressed form", k.layers.Layers, k.layers.Bytes>>20)
		var err error
		if k.layers.Bytes > maxUnpackedLayers {
			err = errors.New(detail)
		}
		add("image layers", false, err, detail, "set discard_unpacked_layers = true in the configuration of "+
			`containerd ([plugins."io.containerd.cri.v1.images"], in version 1 `+
			`[plugins."io.containerd.grpc.v1.cri".containerd]): `+
			"images that are pulled later keep only their unpacked layers")
	}
	if k.ociRuntime.path == "" {
		return
	}
	detail := fmt.Sprintf("%s, %s per call", k.ociRuntime.path, rounded(k.ociRuntime.took))
	var err error
	if saved := k.ociRuntime.took - k.crun.took; k.crun.path != "" && saved > 0 {
		err = fmt.Errorf("%s; %s takes %s per call, which saves about %s of CPU time per container", detail,
			k.crun.path, rounded(k.crun.took), rounded(startCalls*saved))
	}
	add("OCI runtime", false, err, detail,
		`set BinaryName = "`+k.crun.path+`" in the options of the default runtime in the configuration of containerd`)
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

const (
	programCalls   = 5
	programTimeout = 5 * time.Second
)

// measureProgram measures the CPU time of `program --version`, the shortest of some calls. The result is
// empty if the program is not installed.
func measureProgram(ctx context.Context, name string) (out programCost) {
	path, err := exec.LookPath(name)
	if err != nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	for i := range programCalls {
		cmd := exec.CommandContext(ctx, path, "--version")
		if cmd.Run() != nil {
			return programCost{}
		}
		took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if i == 0 || took < out.took {
			out.took = took
		}
	}
	out.path = path
	return out
}
