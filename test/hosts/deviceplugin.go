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

// DevicePlugin is a device plugin in a process of its own: test/deviceplugin.
type DevicePlugin struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	logf  string
}

// BuildDevicePlugin builds test/deviceplugin, once per process.
func BuildDevicePlugin(ctx context.Context) (string, error) {
	return buildPackage(ctx, "deviceplugin", "./test/deviceplugin", BuildOptions{})
}

// StartDevicePlugin starts a plugin of so many devices, null-0, null-1, …, beside
// an agent that may run or not; more is for the program. It does not wait. It ends with this process at
// the latest.
func (a *Agent) StartDevicePlugin(ctx context.Context, resource string, count int, more ...string) (*DevicePlugin, error) {
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
	p.cmd = exec.Command(program, append([]string{filepath.Join(a.RootDir, "device-plugins"), resource, strconv.Itoa(count)}, more...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the device plugin: %w", err)
	}
	return p, nil
}

// Send changes its devices, see the program.
func (p *DevicePlugin) Send(line string) error {
	_, err := io.WriteString(p.input, line+"\n")
	return err
}

// Kill ends it as a crash would.
func (p *DevicePlugin) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // killed
}

// Log is all that plugins of this agent have said.
func (p *DevicePlugin) Log() string {
	text, err := os.ReadFile(p.logf)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
