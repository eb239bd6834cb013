package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// EtherTypes. Beats use the one for local experiments, with a magic of their own.
const (
	protocolARP  = unix.ETH_P_ARP
	protocolIPv6 = unix.ETH_P_IPV6
	protocolBeat = 0x88b5
)

// beatGroup is the multicast address of beats: locally administered, so that switches flood it.
var beatGroup = net.HardwareAddr{0x03, 0x62, 0x72, 0x74, 0x68, 0x01}

const writeTimeout = 100 * time.Millisecond

// inNamespace runs f in a network namespace.
func inNamespace(ns netns.NsHandle, f func() error) error {
	if !ns.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// openPacketSocket opens a socket for the frames of a protocol on an interface. The goroutine must be in
// the network namespace of the interface.
func openPacketSocket(index int, protocol uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	fail := func(what string, err error) (*os.File, error) {
		return nil, errors.Join(fmt.Errorf("packet socket: %s: %w", what, err), unix.Close(fd))
	}
	// Not in old kernels: the readers compare the source address, too.
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	switch protocol {
	case protocolIPv6:
		filter := neighborFilter()
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{
			Len: uint16(len(filter)), Filter: &filter[0],
		}); err != nil {
			return fail("attach filter", err)
		}
	case protocolBeat:
		group := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: 6}
		copy(group.Address[:], beatGroup)
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &group); err != nil {
			return fail("join group", err)
		}
	}
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	at := &unix.SockaddrLinklayer{Protocol: network, Ifindex: index}
	if err := unix.Bind(fd, at); err != nil {
		return fail("bind", err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("packet-%04x", protocol)), nil
}

// neighborFilter passes neighbor solicitations and advertisements only.
func neighborFilter() []unix.SockFilter {
	const loadByte, jumpEqual, ret = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_RET | unix.BPF_K
	return []unix.SockFilter{
		{Code: loadByte, K: ethernetHeader + 6}, // next header
		{Code: jumpEqual, K: icmpv6, Jf: 4},
		{Code: loadByte, K: ethernetHeader + ipv6Header},
		{Code: jumpEqual, K: solicitation, Jt: 1},
		{Code: jumpEqual, K: advertisement, Jf: 1},
		{Code: ret, K: 0xffff},
		{Code: ret},
	}
}

// send writes a frame. A full queue loses it, as the network may.
func send(to *os.File, frame []byte) error {
	if err := to.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := to.Write(frame)
	return err
}

// groups joins the multicast groups of neighbor solicitations, also for switches that filter multicast.
type groups struct {
	fd    int
	index int
	users map[netip.Addr]int // by group
}

// openGroups opens the socket. The goroutine must be in the network namespace of the interface.
func openGroups(index int) (*groups, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for multicast groups: %w", err)
	}
	return &groups{fd, index, map[netip.Addr]int{}}, nil
}

func (g *groups) join(a netip.Addr) error {
	group := solicitedNode(a)
	if g.users[group]++; g.users[group] > 1 {
		return nil
	}
	return g.set(unix.IPV6_JOIN_GROUP, group)
}

func (g *groups) leave(a netip.Addr) error {
	group := solicitedNode(a)
	if g.users[group]--; g.users[group] > 0 {
		return nil
	}
	delete(g.users, group)
	return g.set(unix.IPV6_LEAVE_GROUP, group)
}

func (g *groups) set(option int, group netip.Addr) error {
	return unix.SetsockoptIPv6Mreq(g.fd, unix.IPPROTO_IPV6, option, &unix.IPv6Mreq{
		Multiaddr: group.As16(), Interface: uint32(g.index),
	})
}

func (g *groups) close() { _ = unix.Close(g.fd) }
