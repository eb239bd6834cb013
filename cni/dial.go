package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// DialLocal opens a TCP connection to a port of the loopback interface in a network namespace.
// netns is its path, empty for the agent's own namespace. It tries IPv4 first, then IPv6.
func DialLocal(ctx context.Context, netns string, port uint16) (*net.TCPConn, error) {
	if netns == "" {
		return dialLoopback(ctx, port)
	}
	return inNetNS(netns, func() (*net.TCPConn, error) { return dialLoopback(ctx, port) })
}

func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	var errs []error
	for _, ip := range []string{"127.0.0.1", "::1"} {
		// An IP address needs no resolver, so the dial stays on this goroutine's thread.
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(int(port))))
		if tcp, ok := conn.(*net.TCPConn); err == nil && ok {
			return tcp, nil
		}
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// inNetNS runs do in a network namespace and waits for it. The OS thread is not reused: it exits
// together with its goroutine. It is never the main thread, whose namespace other processes take
// for that of the whole process.
func inNetNS[T any](netns string, do func() (T, error)) (out T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // the thread has not changed its namespace
			out, err = inNetNS(netns, do)
			return
		}
		if err = enterNetNS(netns); err == nil {
			out, err = do()
		}
	}()
	<-done
	return out, err
}

func enterNetNS(netns string) error {
	f, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", netns, err)
	}
	return nil
}
