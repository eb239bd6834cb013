package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// psiTrigger notifies when some task has waited for memory for 100 ms within a second. The kernel
// notifies at most once per second.
const psiTrigger = "some 100000 1000000\x00"

// memoryCgroup is the root of the memory hierarchy of cgroup v1.
const memoryCgroup = "/sys/fs/cgroup/memory"

// WatchMemoryPressure calls notify whenever the kernel signals memory pressure, until ctx ends. It
// returns an error if the kernel does not support this.
func WatchMemoryPressure(ctx context.Context, notify func()) error {
	fd, events, err := openPSI(memoryPSI)
	if err != nil {
		var second error
		if fd, events, second = openPressureLevel(memoryCgroup); second != nil {
			return errors.Join(err, second)
		}
	}
	defer unix.Close(fd)
	return pollEvents(ctx, fd, events, notify)
}

// openPSI registers a trigger for pressure stall information, which poll reports as priority data.
func openPSI(file string) (fd int, events int16, err error) {
	fd, err = unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, &os.PathError{Op: "open", Path: file, Err: err}
	}
	if _, err := unix.Write(fd, []byte(psiTrigger)); err != nil {
		_ = unix.Close(fd)
		return -1, 0, &os.PathError{Op: "register trigger", Path: file, Err: err}
	}
	return fd, unix.POLLPRI, nil
}

// openPressureLevel registers for the memory pressure notifications of cgroup v1, which use an
// event counter.
func openPressureLevel(group string) (fd int, events int16, err error) {
	level, err := os.Open(filepath.Join(group, "memory.pressure_level"))
	if err != nil {
		return -1, 0, err
	}
	defer level.Close() // the kernel keeps its own reference
	if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return -1, 0, fmt.Errorf("eventfd: %w", err)
	}
	control := strconv.Itoa(fd) + " " + strconv.Itoa(int(level.Fd())) + " medium"
	if err := os.WriteFile(filepath.Join(group, "cgroup.event_control"), []byte(control), 0); err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, unix.POLLIN, nil
}

// pollEvents waits for events of fd. Go's poller does not support priority data.
func pollEvents(ctx context.Context, fd int, events int16, notify func()) error {
	stopFd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(stopFd)
	written := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(written)
		_, _ = unix.Write(stopFd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-written // it writes to stopFd, which is closed next
		}
	}()
	buf := make([]byte, 8)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(stopFd), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("poll memory pressure: %w", err)
		case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
			return errors.New("memory pressure notifications ended")
		}
		if events == unix.POLLIN {
			_, _ = unix.Read(fd, buf) // otherwise it stays readable
		}
		notify()
	}
}
