package hosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LAN is a network of hosts: a bridge in its own network namespace. Each of its hosts has a network
// and a mount namespace and one port. The machine itself has a port too, through which a server and
// kubectl reach the hosts and the hosts reach the server. The bridge is the router to the outside
// network, which has no route back to any pod.
type LAN struct {
	n    int
	lock *os.File

	Machine  netip.Addr // address of this machine on the LAN
	Outside4 netip.Addr // addresses in the outside network: see RunOutside
	Outside6 netip.Addr
}

const netnsDir = "/run/netns"

func lanName(n int) string          { return "berth-lan-" + strconv.Itoa(n) }
func lanLock(n int) string          { return filepath.Join(runDir, "lan-"+strconv.Itoa(n)+".lock") }
func machineLANPort(n int) string   { return "bhlan" + strconv.Itoa(n) } // port of the machine
func lan4(n int, at byte) string    { return fmt.Sprintf("10.212.%d.%d", n, at) }
func lan6(n int, at byte) string    { return fmt.Sprintf("fd12:%x::%x", n, at) }
func (r *record) netns() string     { return r.name() }
func (r *record) lanPort() string   { return "bhp" + strconv.Itoa(r.Number) } // port of the host on the LAN
func (r *record) lan4() netip.Addr  { return netip.MustParseAddr(lan4(r.LAN-1, byte(r.Number+2))) }
func (r *record) lan6() netip.Addr  { return netip.MustParseAddr(lan6(r.LAN-1, byte(r.Number+2))) }
func (r *record) varLibCNI() string { return filepath.Join(r.Dir, "cni", "var") }

const (
	machineAt = 1
	routerAt  = 254
	maxLANs   = 100

	secondAddressOffset = 110 // distance of a host's second address from its first
)

// NewLAN creates a network after removing the leaks of dead owners.
func NewLAN() (l *LAN, err error) {
	err = withRunDir(func() error {
		left, _ := filepath.Glob(filepath.Join(runDir, "lan-*.lock"))
		for _, file := range left {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "lan-"), ".lock"))
			if err != nil {
				continue
			}
			if lock, err := tryLock(file); lock != nil && err == nil {
				if err := errors.Join(removeLAN(n), os.Remove(file), lock.Close()); err != nil {
					return err
				}
			}
		}
		for n := range maxLANs {
			lock, err := tryLock(lanLock(n))
			if err != nil {
				return err
			}
			if lock == nil {
				continue
			}
			l = &LAN{
				n: n, lock: lock, Machine: netip.MustParseAddr(lan4(n, machineAt)),
				Outside4: netip.MustParseAddr("192.0.2.1"), Outside6: netip.MustParseAddr("2001:db8::1"),
			}
			return nil
		}
		return fmt.Errorf("all %d networks are in use", maxLANs)
	})
	if err != nil {
		return nil, err
	}
	if err := l.make(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *LAN) make() error {
	ns := lanName(l.n)
	for _, args := range []string{
		"netns add " + ns,
		"-n " + ns + " link set lo up",
		"-n " + ns + " addr add " + l.Outside4.String() + "/32 dev lo",
		"-n " + ns + " addr add " + l.Outside6.String() + "/128 dev lo nodad",
		"-n " + ns + " link add lan type bridge",
		"-n " + ns + " addr add " + lan4(l.n, routerAt) + "/24 dev lan",
		"-n " + ns + " addr add " + lan6(l.n, routerAt) + "/64 dev lan nodad",
		"-n " + ns + " link set lan up",
		"link add " + machineLANPort(l.n) + " type veth peer name machine netns " + ns,
		"-n " + ns + " link set machine master lan up",
		"addr add " + lan4(l.n, machineAt) + "/24 dev " + machineLANPort(l.n),
		"link set " + machineLANPort(l.n) + " up",
	} {
		if _, err := command("ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// Close removes the network. Its hosts must have been stopped.
func (l *LAN) Close() error {
	return errors.Join(removeLAN(l.n), withRunDir(func() error {
		err := os.Remove(lanLock(l.n))
		os.Remove(runDir) // fails unless this was the last one
		return err
	}), l.lock.Close())
}

// removeLAN removes a network with the port of the machine. The kernel removes the links of a namespace some time after
// the namespace, and until then their names cannot be used again.
func removeLAN(n int) error {
	port := machineLANPort(n)
	var err error
	if _, missing := net.InterfaceByName(port); missing == nil {
		_, err = command("ip", "link", "del", port)
	}
	return errors.Join(err, removeNetNS(lanName(n)))
}

// removeNetNS removes a network namespace with everything in it.
func removeNetNS(name string) error {
	if _, err := os.Stat(filepath.Join(netnsDir, name)); err != nil {
		return nil //nolint:nilerr // it does not exist
	}
	_, err := command("ip", "netns", "del", name)
	return err
}

// RouteFromMachine makes the pods of a host on the LAN reachable from this machine, as an API server outside of the
// pod network needs. Close removes the route.
func (l *LAN) RouteFromMachine(pods netip.Prefix, h *Host) error {
	_, err := command("ip", "route", "add", pods.String(), "via", h.slot.lan4().String(), "dev", machineLANPort(l.n))
	return err
}

// RunOutside calls f in the outside network. Sockets that f opens stay in that network.
func (l *LAN) RunOutside(f func() error) error { return inNetNS(lanName(l.n), f) }

// RunInNetwork calls f in the network namespace of a host on a LAN.
func (h *Host) RunInNetwork(f func() error) error { return inNetNS(h.slot.netns(), f) }

func inNetNS(name string, f func() error) error { return RunInNetNS(filepath.Join(netnsDir, name), f) }

// RunInNetNS calls f in a network namespace, which is a file such as /proc/PID/ns/net. Sockets that f opens stay
// there.
func RunInNetNS(file string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := os.Open(file)
		if err != nil {
			result <- err
			return
		}
		defer fd.Close()
		if err := unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter %s: %w", file, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// connectLAN creates the host's namespaces and its port on the LAN.
func (h *Host) connectLAN(ctx context.Context) error {
	r := &h.slot.record
	n, ns, lan := r.LAN-1, r.netns(), lanName(r.LAN-1)
	if err := os.MkdirAll(r.varLibCNI(), 0o755); err != nil {
		return err
	}
	for _, args := range []string{
		"netns add " + ns,
		"-n " + ns + " link set lo up",
		"-n " + lan + " link add " + r.lanPort() + " type veth peer name eth0 netns " + ns,
		"-n " + lan + " link set " + r.lanPort() + " master lan up",
		"-n " + ns + " addr add " + r.lan4().String() + "/24 dev eth0",
		"-n " + ns + " addr add " + r.lan6().String() + "/64 dev eth0 nodad",
		"-n " + ns + " link set eth0 up",
		"-n " + ns + " route add default via " + lan4(n, routerAt),
		"-n " + ns + " -6 route add default via " + lan6(n, routerAt),
	} {
		if _, err := command("ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return h.startMountHolder(ctx)
}

// startMountHolder starts the process that holds the host's mount namespace. It gives each host its
// own /var/lib/cni.
func (h *Host) startMountHolder(context.Context) error {
	r := &h.slot.record
	r.Holder = 0
	join, err := r.joinScript()
	if err != nil {
		return err
	}
	const script = `mkdir -p /var/lib/cni && mount --bind "$1" /var/lib/cni && echo held && exec sleep infinity`
	enter := `exec nsenter --net="$1" unshare --mount --propagation private /bin/sh -c "$2" sh "$3"`
	cmd := exec.Command("/bin/sh", "-c", join+enter, "sh", filepath.Join(netnsDir, r.netns()), script, r.varLibCNI())
	cmd.Stderr, cmd.Dir = os.Stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err = startChild(cmd); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		return fmt.Errorf("create the mount namespace of the host: %q %w", line, err)
	}
	r.Holder = cmd.Process.Pid
	return h.write()
}

// nsenterScript returns the end of joinScript: from there on the shell's arguments run in the
// host's namespaces.
func (r *record) nsenterScript() string {
	if r.LAN == 0 || r.Holder == 0 {
		return ""
	}
	return fmt.Sprintf("set -- nsenter --net=%s --mount=/proc/%d/ns/mnt -- \"$@\"\n",
		filepath.Join(netnsDir, r.netns()), r.Holder)
}

// nodeIPs returns the agent's --node-ip flag, or nothing if the agent is to detect its addresses.
func (h *Host) nodeIPs(detect bool) []string {
	r := &h.slot.record
	switch {
	case detect:
		return nil
	case r.LAN == 0:
		return []string{"--node-ip", h.Gateway.String()}
	}
	return []string{"--node-ip", r.lan4().String() + "," + r.lan6().String()}
}

// ChangeAddress gives a host on a LAN another IPv4 address, as a DHCP server does, and returns it.
func (h *Host) ChangeAddress() (netip.Addr, error) {
	r := &h.slot.record
	n, ns := r.LAN-1, r.netns()
	to := lan4(n, byte(r.Number+2+secondAddressOffset))
	for _, args := range []string{
		"-n " + ns + " addr del " + r.lan4().String() + "/24 dev eth0",
		"-n " + ns + " addr add " + to + "/24 dev eth0",
		"-n " + ns + " route replace default via " + lan4(n, routerAt),
	} {
		if _, err := command("ip", strings.Fields(args)...); err != nil {
			return netip.Addr{}, err
		}
	}
	return netip.ParseAddr(to)
}
