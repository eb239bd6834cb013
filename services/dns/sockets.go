package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sockets are the sockets that a Server reads. A server that ends closes its descriptors of them. The
// sockets themselves live on, with the queries in their buffers, while another process or the service
// manager has descriptors.
type Sockets struct {
	udp []*packetSocket
	tcp []*net.TCPListener
}

// receiveBuffer is the size of the buffer of a UDP socket, in which queries wait during a restart.
const receiveBuffer = 4 << 20

// Open returns a UDP and a TCP socket for each address. It takes those of the files that have a wanted
// address, and opens the others; an address need not be assigned to an interface yet. It closes all
// files. The same address with port 0 is not found among the files.
func Open(addresses []netip.AddrPort, files []*os.File) (s *Sockets, err error) {
	s = &Sockets{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	inherited := &Sockets{}
	defer func() { inherited.Close() }()
	for _, f := range files {
		if err := inherited.add(f); err != nil {
			return s, err
		}
	}
	config := net.ListenConfig{Control: control}
	for _, address := range addresses {
		address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
		u := slices.IndexFunc(inherited.udp, func(p *packetSocket) bool { return p.local == address })
		if u >= 0 {
			s.udp = append(s.udp, inherited.udp[u])
			inherited.udp = slices.Delete(inherited.udp, u, u+1)
		} else {
			conn, err := config.ListenPacket(context.Background(), network("udp", address), address.String())
			if err != nil {
				return s, fmt.Errorf("listen: %w", err)
			}
			udp, _ := conn.(*net.UDPConn)
			if err := s.addPackets(udp); err != nil {
				return s, err
			}
		}
		t := slices.IndexFunc(inherited.tcp, func(l *net.TCPListener) bool { return addressOf(l.Addr()) == address })
		if t >= 0 {
			s.tcp = append(s.tcp, inherited.tcp[t])
			inherited.tcp = slices.Delete(inherited.tcp, t, t+1)
			continue
		}
		if address.Port() == 0 { // the same port for both
			address = netip.AddrPortFrom(address.Addr(), s.udp[len(s.udp)-1].local.Port())
		}
		l, err := config.Listen(context.Background(), network("tcp", address), address.String())
		if err != nil {
			return s, fmt.Errorf("listen: %w", err)
		}
		tcp, _ := l.(*net.TCPListener)
		s.tcp = append(s.tcp, tcp)
	}
	return s, nil
}

// network returns the network of one family, so that a socket for :: takes no IPv4.
func network(proto string, a netip.AddrPort) string {
	if a.Addr().Is4() {
		return proto + "4"
	}
	return proto + "6"
}

// add adds the socket of a file and closes the file.
func (s *Sockets) add(f *os.File) error {
	defer f.Close()
	if conn, err := net.FilePacketConn(f); err == nil {
		udp, ok := conn.(*net.UDPConn)
		if !ok {
			return errors.Join(fmt.Errorf("inherited socket %s: it is not a UDP socket", f.Name()), conn.Close())
		}
		return s.addPackets(udp)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("inherited socket %s: %w", f.Name(), err)
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return errors.Join(fmt.Errorf("inherited socket %s: it is not a TCP socket", f.Name()), l.Close())
	}
	s.tcp = append(s.tcp, tcp)
	return nil
}

func (s *Sockets) addPackets(conn *net.UDPConn) error {
	p, err := newPacketSocket(conn)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	s.udp = append(s.udp, p)
	return nil
}

// Addresses returns the addresses of the UDP sockets.
func (s *Sockets) Addresses() (out []netip.AddrPort) {
	for _, p := range s.udp {
		out = append(out, p.local)
	}
	return out
}

// Conns returns the sockets for another server, which closes them.
func (s *Sockets) Conns() (packets []*net.UDPConn, listeners []*net.TCPListener) {
	for _, p := range s.udp {
		packets = append(packets, p.conn)
	}
	return packets, s.tcp
}

// Files returns new descriptors of all sockets, for a successor. The caller closes them.
func (s *Sockets) Files() (files []*os.File, err error) {
	for _, p := range s.udp {
		f, err2 := p.conn.File()
		files, err = append(files, f), errors.Join(err, err2)
	}
	for _, l := range s.tcp {
		f, err2 := l.File()
		files, err = append(files, f), errors.Join(err, err2)
	}
	if err == nil {
		return files, nil
	}
	for _, f := range files {
		_ = f.Close() // of a nil file it fails
	}
	return nil, err
}

// interrupt ends all reads and accepts.
func (s *Sockets) interrupt() {
	for _, p := range s.udp {
		_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // an error means that it is closed
	}
	for _, l := range s.tcp {
		_ = l.SetDeadline(time.Unix(1, 0))
	}
}

// Close closes the descriptors.
func (s *Sockets) Close() {
	for _, p := range s.udp {
		_ = p.conn.Close()
	}
	for _, l := range s.tcp {
		_ = l.Close()
	}
}

// control sets the options of a new socket. IP_FREEBIND and IPV6_FREEBIND permit an address that no
// interface has yet. Larger buffers need privileges: without them the system's limit applies.
func control(network, _ string, c syscall.RawConn) error {
	var err error
	err2 := c.Control(func(fd uintptr) {
		level, option := unix.SOL_IP, unix.IP_FREEBIND
		if network == "udp6" || network == "tcp6" {
			level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
		}
		err = unix.SetsockoptInt(int(fd), level, option, 1)
		if network == "udp4" || network == "udp6" {
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer))
			}
		}
	})
	return errors.Join(err, err2)
}

// addressOf returns the address of a socket.
func addressOf(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.UDPAddr:
		ap = a.AddrPort()
	case *net.TCPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
