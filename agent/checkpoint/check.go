package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// checkVariable is the environment variable that makes a process check the file it names.
const checkVariable = "BERTH_CHECK_STORE"

// Exit codes of the process that checks a file. Any other one is a crash.
const (
	checkDamaged = 3 // the reason is on stdout
	checkForeign = 4
	checkSkipped = 5 // the file could not be read, Open reports the reason
)

// Limits of the process that checks a file. A damaged file can cause endless loops and enormous
// allocations. Sound stores stay far below the limits.
const (
	checkCPUSeconds = 10
	checkDataBytes  = 512 << 20
	checkStackBytes = 64 << 20
	maxBucketDepth  = 8
	maxReasonBytes  = 200
)

// checkEnabled is set in programs that call RunCheckProcess.
var checkEnabled atomic.Bool

// RunCheckProcess must be called by a program that opens stores before it does anything else. In a
// process that Open has started to check a file, it checks the file and exits. In any other process
// it returns, and Open may execute the program again. Open does not check files in a program that
// has not called it.
func RunCheckProcess() {
	path, ok := os.LookupEnv(checkVariable)
	if !ok {
		checkEnabled.Store(true)
		return
	}
	os.Exit(runCheck(path, os.Stdout))
}

// runCheck checks a file and returns the exit code.
func runCheck(path string, out io.Writer) int {
	debug.SetMaxStack(checkStackBytes)
	cpu := make(chan os.Signal, 1)
	signal.Notify(cpu, unix.SIGXCPU)
	go func() {
		<-cpu
		_, _ = fmt.Fprintf(out, "its check used more than %d s of CPU time", checkCPUSeconds)
		os.Exit(checkDamaged)
	}()
	for resource, limit := range map[int]uint64{unix.RLIMIT_CPU: checkCPUSeconds, unix.RLIMIT_DATA: checkDataBytes} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: 2 * limit}); err != nil {
			return checkSkipped
		}
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err == nil {
		err = db.View(checkConsistency)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, bberrors.ErrInvalid):
		return checkForeign
	case isPathError(err), errors.Is(err, bberrors.ErrTimeout):
		return checkSkipped
	}
	_, _ = fmt.Fprint(out, err)
	return checkDamaged
}

// checkConsistency returns the first inconsistency of the database.
func checkConsistency(tx *bbolt.Tx) error {
	for err := range tx.Check() {
		return err // the process exits, and need not drain the channel
	}
	return tx.ForEach(func(name []byte, b *bbolt.Bucket) error { return readAll(b, 1) })
}

// readAll reads all keys and values of a bucket. bbolt's Check does not read values and inline
// buckets, which may point outside of the file.
func readAll(b *bbolt.Bucket, depth int) error {
	if b == nil || depth > maxBucketDepth {
		return fmt.Errorf("invalid bucket at depth %d", depth)
	}
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			return readAll(b.Bucket(k), depth+1)
		}
		_ = bytes.Count(v, []byte{0}) // a fault ends the process
		return nil
	})
}

// checkFile checks an existing file in a child process. The error is an unusableError if the file
// must be quarantined.
func checkFile(path string, log *slog.Logger) error {
	if !checkEnabled.Load() {
		return nil
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/proc/self/exe") //nolint:noctx // the child limits its own CPU time
	cmd.Env = append(os.Environ(), checkVariable+"="+path, "GOTRACEBACK=none")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case !exited:
		log.Warn("local store not checked", "path", path, "err", err)
		return nil
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled() && status.Signal() == unix.SIGKILL: // not caused by the file
		log.Warn("local store not checked", "path", path, "err", err)
		return nil
	case exit.ExitCode() == checkSkipped:
		return nil
	case exit.ExitCode() == checkForeign:
		return &unusableError{"alien", "the store was not written by berth"}
	case exit.ExitCode() == checkDamaged:
		return damagedError("%s", firstLine(stdout.String()))
	}
	crash := firstLine(stderr.String() + "\n" + err.Error())
	// The reason is logged. "panic:" would look like a crash of the agent.
	return damagedError("its check crashed: %s", strings.TrimPrefix(crash, "panic: "))
}

// firstLine returns the first line that is not empty, shortened.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), maxReasonBytes)]
}
