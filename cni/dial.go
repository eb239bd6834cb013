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

// DialLocal opens a TCP connection to a port of the loopback interface in a
// network namespace: netns is the path of one, empty for the agent's own. IPv4
// comes first, and IPv6 where nobody listens there.
func DialLocal(ctx context.Context, netns string, port uint16) (*net.TCPConn, error) {
	if netns == "" {
		return dialLoopback(ctx, port)
	}
	return inNetwork(netns, func() (*net.TCPConn, error) { return dialLoopback(ctx, port) })
}

func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	var errs []error
	for _, ip := range []string{"127.0.0.1", "::1"} {
		// An address, not a name: such a dial stays on its goroutine.
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

// inNetwork runs do in a network namespace and waits for it. The thread that went
// there ends with its goroutine and is used for nothing else; it is never the
// process' first, whose namespace others see as the process' own.
func inNetwork[T any](netns string, do func() (T, error)) (out T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // it has gone nowhere
			out, err = inNetwork(netns, do)
			return
		}
		if err = enterNetwork(netns); err == nil {
			out, err = do()
		}
	}()
	<-done
	return out, err
}

func enterNetwork(netns string) error {
	f, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("enter the pod's network: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the pod's network %s: %w", netns, err)
	}
	return nil
}
