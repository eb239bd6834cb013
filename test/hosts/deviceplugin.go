package hosts

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// DevicePlugin is a device plugin in its own process: test/deviceplugin.
type DevicePlugin struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	logf  string
}

// BuildDevicePlugin builds test/deviceplugin, once per process.
func BuildDevicePlugin(ctx context.Context) (string, error) {
	return buildPackage(ctx, "deviceplugin", "test", "./deviceplugin", BuildOptions{})
}

// StartDevicePlugin starts a plugin with count devices, null-0, null-1, …, for an agent that may or
// may not be running. more are further arguments of the program. It does not wait for the
// registration. The plugin exits when this process exits.
func (a *Agent) StartDevicePlugin(
	ctx context.Context, resource string, count int, more ...string,
) (*DevicePlugin, error) {
	program, err := BuildDevicePlugin(ctx)
	if err != nil {
		return nil, err
	}
	p := &DevicePlugin{logf: filepath.Join(filepath.Dir(a.logf), "deviceplugin.log")}
	log, err := os.OpenFile(p.logf, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{filepath.Join(a.RootDir, "device-plugins"), resource, strconv.Itoa(count)}
	p.cmd = exec.Command(program, append(args, more...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the device plugin: %w", err)
	}
	return p, nil
}

// Send writes a line to the program to change its devices. See the program for the syntax.
func (p *DevicePlugin) Send(line string) error {
	_, err := io.WriteString(p.input, line+"\n")
	return err
}

// Kill ends the process with SIGKILL.
func (p *DevicePlugin) Kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	_ = p.cmd.Wait()         // killed
}

// Log returns the output of all plugins of this agent.
func (p *DevicePlugin) Log() string {
	text, err := os.ReadFile(p.logf)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
