package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"berth/test/hosts"
	"berth/test/images"
)

// podImages returns the images of the pods in the machine.
func podImages(ctx context.Context) ([]images.Archive, error) {
	dir, err := images.CacheDir()
	if err != nil {
		return nil, err
	}
	pause, err := images.Pause(ctx, dir)
	if err != nil {
		return nil, err
	}
	busybox, err := images.Busybox(ctx, dir)
	return []images.Archive{pause, busybox}, err
}

// importImages creates the machine's containerd root directory with the images. It runs containerd on
// this machine because the import is slow in the emulated one. It runs no container.
func importImages(ctx context.Context, root, containerd string, archives []images.Archive) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	work, err := os.MkdirTemp("", "berth-vm-") // the path of a socket must be short
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	socket, config := filepath.Join(work, "s"), filepath.Join(work, "config.toml")
	configText := fmt.Sprintf("version = 3\nroot = %q\nstate = %q\ntemp = %q\n[grpc]\naddress = %q\n", root,
		filepath.Join(work, "state"), filepath.Join(work, "tmp"), socket) +
		"disabled_plugins = [\"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", " +
		"\"io.containerd.grpc.v1.cri\", \"io.containerd.nri.v1.nri\"]\n"
	if err := os.WriteFile(config, []byte(configText), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(work, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(containerd, "containerd"), "--config", config)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET=")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets containerd close its database
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was interrupted
		if err != nil {
			text, _ := os.ReadFile(log.Name())
			err = fmt.Errorf("%w\n%s", err, text)
		}
	}()
	ctr := filepath.Join(containerd, "ctr")
	err = hosts.WaitFor(ctx, "containerd", func() (bool, error) {
		return run(ctx, ctr, "-a", socket, "version") == nil, nil
	})
	for _, a := range archives {
		if err == nil {
			err = run(ctx, ctr, "-a", socket, "-n", "k8s.io", "images", "import", a.Path)
		}
	}
	return errors.Join(err)
}
