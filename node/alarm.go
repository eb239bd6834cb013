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

// trigger has the kernel say so when some task has waited for memory for 100 ms
// within a second. It says so once a second at most.
const trigger = "some 100000 1000000\x00"

// memoryCgroup is where cgroup v1 has the memory of the whole host.
const memoryCgroup = "/sys/fs/cgroup/memory"

// WatchMemoryPressure rings whenever memory gets short by the kernel's own measure, until
// ctx ends. Between rings it costs nothing. An error says that this kernel tells
// nothing of the kind.
func WatchMemoryPressure(ctx context.Context, ring func()) error {
	fd, events, err := stallAlarm(memoryStalls)
	if err != nil {
		var second error
		if fd, events, second = levelAlarm(memoryCgroup); second != nil {
			return errors.Join(err, second)
		}
	}
	defer unix.Close(fd)
	return follow(ctx, fd, events, ring)
}

// stallAlarm asks for pressure stall notifications, which poll tells as priority
// data.
func stallAlarm(file string) (fd int, events int16, err error) {
	fd, err = unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, &os.PathError{Op: "open", Path: file, Err: err}
	}
	if _, err := unix.Write(fd, []byte(trigger)); err != nil {
		_ = unix.Close(fd)
		return -1, 0, &os.PathError{Op: "ask for alarms of", Path: file, Err: err}
	}
	return fd, unix.POLLPRI, nil
}

// levelAlarm asks for the notifications of cgroup v1, which come by an event
// counter.
func levelAlarm(group string) (fd int, events int16, err error) {
	level, err := os.Open(filepath.Join(group, "memory.pressure_level"))
	if err != nil {
		return -1, 0, err
	}
	defer level.Close() // the kernel keeps what it needs of it
	if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return -1, 0, fmt.Errorf("eventfd: %w", err)
	}
	words := strconv.Itoa(fd) + " " + strconv.Itoa(int(level.Fd())) + " medium"
	if err := os.WriteFile(filepath.Join(group, "cgroup.event_control"), []byte(words), 0); err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, unix.POLLIN, nil
}

// follow waits for events of fd. Go's own poller does not know priority data.
func follow(ctx context.Context, fd int, events int16, ring func()) error {
	leave, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	defer unix.Close(leave)
	left := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(left)
		_, _ = unix.Write(leave, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-left // it writes to what is closed next
		}
	}()
	buf := make([]byte, 8)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(leave), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for memory to get short: %w", err)
		case fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
			return errors.New("the kernel tells no more of memory")
		}
		if events == unix.POLLIN {
			_, _ = unix.Read(fd, buf) // else it stays readable
		}
		ring()
	}
}
