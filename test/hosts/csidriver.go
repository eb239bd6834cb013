package hosts

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CSIDriver is a CSI driver in its own process: test/csidriver.
type CSIDriver struct {
	Name    string
	DataDir string // with a directory for each volume

	cmd   *exec.Cmd
	input io.WriteCloser
	logf  string
}

// BuildCSIDriver builds the test driver.
func BuildCSIDriver(ctx context.Context) (string, error) {
	return buildPackage(ctx, "csidriver", "test", "./csidriver", BuildOptions{})
}

// StartCSIDriver starts a driver for an agent that may or may not be running. It does not wait for the registration.
// The driver exits when this process exits.
func (a *Agent) StartCSIDriver(ctx context.Context, name string) (*CSIDriver, error) {
	program, err := BuildCSIDriver(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(a.logf)
	d := &CSIDriver{Name: name, DataDir: filepath.Join(dir, "volumes-of-"+name), logf: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(d.logf, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = exec.Command(program, a.RootDir, name, d.DataDir)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if d.input, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the CSI driver: %w", err)
	}
	return d, nil
}

// Send writes a line to the program to change its behavior. See the program for the syntax.
func (d *CSIDriver) Send(line string) error {
	_, err := io.WriteString(d.input, line+"\n")
	return err
}

// Kill ends the process with SIGKILL. Its sockets are left.
func (d *CSIDriver) Kill() {
	_ = d.cmd.Process.Kill() // it may have exited
	_ = d.cmd.Wait()         // killed
}

// Stop lets the driver remove its sockets and exit.
func (d *CSIDriver) Stop() error {
	if err := d.input.Close(); err != nil {
		return err
	}
	return d.cmd.Wait()
}

// Log returns the output of all drivers of this name and agent.
func (d *CSIDriver) Log() string {
	text, err := os.ReadFile(d.logf)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Calls returns the number of calls of a method for a volume, since the driver was first started.
func (d *CSIDriver) Calls(method, volume string) int {
	return strings.Count(d.Log()+"\n", "call "+method+" "+volume+"\n")
}
