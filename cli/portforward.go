package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"berth/nodeapi"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// forwardOptions are the flags of port-forward.
type forwardOptions struct {
	namespace string
	addresses []string
}

func (c *factory) portForward() *cobra.Command {
	var o forwardOptions
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Forward local ports to a pod",
		Long: `Listen on local ports and forward each connection to a port of the pod. Connections originate inside the
pod, so servers on the loopback interface of the pod can be reached. REMOTE is a number or the name of
a container port. Without LOCAL the local port is the same, and with an empty LOCAL (:80) a free port is
used. The directions of a connection can end separately, and a failed connection does not affect others.
The command runs until it is interrupted.`,
		Example: `  berth port-forward web 8080:80
  berth port-forward kube-system/dns :metrics 5353`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := targetOf(cmd, o.namespace, args[0])
			if err != nil {
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			pod, err := client.Pod(cmd.Context(), t.namespace, t.name)
			if err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf(
					"unable to forward port because pod is not running. Current status=%s",
					pod.Status.Phase,
				)
			}
			ports, err := forwardsOf(pod, args[1:])
			if err != nil {
				return err
			}
			return o.run(cmd, client, t, ports)
		},
	}
	namespaceFlag(cmd, &o.namespace)
	cmd.Flags().
		StringSliceVar(
			&o.addresses, "address", []string{"localhost"}, "local addresses to listen on: IP addresses or localhost",
		)
	c.complete(cmd)
	return cmd
}

// forward is a local port (0: any free port) and a port of the pod.
type forward struct{ local, remote uint16 }

func forwardsOf(pod *corev1.Pod, args []string) ([]forward, error) {
	var out []forward
	for _, arg := range args {
		local, remote, two := strings.Cut(arg, ":")
		if !two {
			remote = local
		}
		to, err := remotePort(pod, remote)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		from := to
		switch {
		case two && local == "":
			from = 0
		case two:
			if from, err = portNumber(local, 0); err != nil {
				return nil, fmt.Errorf("%q: local port %w", arg, err)
			}
		}
		out = append(out, forward{from, to})
	}
	return out, nil
}

func portNumber(text string, least uint64) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < least {
		return 0, fmt.Errorf("%q must be a number between %d and 65535", text, least)
	}
	return uint16(n), nil
}

// remotePort parses a port number or the name of a container port.
func remotePort(pod *corev1.Pod, text string) (uint16, error) {
	if n, err := portNumber(text, 1); err == nil {
		return n, nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			for _, p := range c.Ports {
				if p.Name != "" && p.Name == text {
					return uint16(p.ContainerPort), nil
				}
			}
		}
	}
	return 0, fmt.Errorf("%q is neither a port number nor the name of a port of pod %s", text, pod.Name)
}

// run listens and forwards until the command is canceled.
func (o forwardOptions) run(cmd *cobra.Command, client *nodeapi.Client, t target, ports []forward) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	out := &lineLock{w: cmd.OutOrStdout()}
	errs := &lineLock{w: cmd.ErrOrStderr()}
	var open []listening
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for _, p := range ports {
		listeners, err := o.listen(ctx, p)
		if err != nil {
			return err
		}
		open = append(open, listeners...)
	}
	for _, l := range open {
		if err := out.line(fmt.Sprintf("Forwarding from %s -> %d", l.Addr(), l.remote)); err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	for _, l := range open {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		all.Go(func() {
			l.accept(ctx, &all, out, errs, func(ctx context.Context) (nodeapi.Stream, error) {
				return client.PortForward(ctx, t.namespace, t.name, l.remote)
			})
			cancel()
		})
	}
	all.Wait()
	if cmd.Context().Err() != nil {
		return cmd.Context().Err()
	}
	return errors.New("the local ports were closed")
}

func (l *lineLock) line(text string) error { return l.writer("").emit([]byte(text + "\n")) }

// listening is one local port.
type listening struct {
	net.Listener
	remote uint16
}

// listen opens a local port on every address. For localhost, one of the two loopback addresses is
// sufficient.
func (o forwardOptions) listen(ctx context.Context, p forward) ([]listening, error) {
	var out []listening
	var errs []error
	one := func(host string) bool {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(p.local))))
		if err != nil {
			errs = append(errs, err)
			return false
		}
		if at, ok := ln.Addr().(*net.TCPAddr); ok {
			p.local = uint16(at.Port) // use the same port for all addresses
		}
		out = append(out, listening{ln, p.remote})
		return true
	}
	for _, a := range o.addresses {
		if a != "localhost" {
			if net.ParseIP(a) == nil {
				errs = append(errs, fmt.Errorf("%q is not a valid IP", a))
			} else if one(a) {
				continue
			}
			break
		}
		v4 := one("127.0.0.1")
		if v6 := one("::1"); v4 || v6 {
			errs = nil
			continue
		}
		break
	}
	if len(errs) == 0 {
		return out, nil
	}
	for _, l := range out {
		_ = l.Close()
	}
	return nil, fmt.Errorf("unable to listen on any of the requested ports: %w", errors.Join(errs...))
}

// accept serves connections until the listener is closed. A failed connection is reported and does
// not affect others.
func (l listening) accept(
	ctx context.Context,
	all *sync.WaitGroup,
	out, errs *lineLock,
	dial func(context.Context) (nodeapi.Stream, error),
) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				_ = errs.line("error: accept: " + clean(err.Error()))
			}
			return
		}
		all.Go(func() {
			local, ok := conn.(nodeapi.Stream)
			if !ok {
				_ = conn.Close()
				return
			}
			_ = out.line("Handling connection for " + strconv.Itoa(portOf(l.Addr())))
			pod, err := dial(ctx)
			if err != nil {
				if ctx.Err() == nil {
					_ = errs.line("error: forward connection: " + clean(err.Error()))
				}
				_ = conn.Close()
				return
			}
			nodeapi.ProxyStreams(ctx, local, pod)
		})
	}
}

func portOf(a net.Addr) int {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}
