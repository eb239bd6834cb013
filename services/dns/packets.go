package dns

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packetSocket is a UDP socket that answers from the address that was queried, also if it is bound to
// the unspecified address.
type packetSocket struct {
	conn  *net.UDPConn
	local netip.AddrPort
	any   bool // bound to the unspecified address
}

// destination is the control message with the address that a packet was sent to, and sends from it.
type destination [64]byte

func newPacketSocket(conn *net.UDPConn) (*packetSocket, error) {
	p := &packetSocket{conn: conn, local: addressOf(conn.LocalAddr())}
	if p.any = p.local.Addr().IsUnspecified(); !p.any {
		return p, nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if p.local.Addr().Is4() {
			set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		} else {
			set = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	})
	if err == nil {
		err = set
	}
	return p, err
}

// read reads a packet into buf. to is what write needs to answer it.
func (p *packetSocket) read(buf []byte, d *destination) (n int, to []byte, from netip.AddrPort, err error) {
	if !p.any {
		n, from, err = p.conn.ReadFromUDPAddrPort(buf)
		return n, nil, from, err
	}
	n, oobn, _, from, err := p.conn.ReadMsgUDPAddrPort(buf, d[:])
	if err != nil {
		return n, nil, from, err
	}
	return n, p.source(d[:oobn]), from, nil
}

// source turns the control message of a packet into that of its answer.
func (p *packetSocket) source(oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		m := &messages[i]
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			// in_pktinfo has the interface, the local address and the destination of the packet. Sending
			// uses the local address; the route decides the interface.
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[4:8])})
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 20:
			info := unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])}
			if netip.AddrFrom16(info.Addr).IsLinkLocalUnicast() { // valid on its interface only
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:])
			}
			return unix.PktInfo6(&info)
		}
	}
	return nil
}

// write sends an answer to a packet.
func (p *packetSocket) write(answer, to []byte, client netip.AddrPort) error {
	if to == nil {
		_, err := p.conn.WriteToUDPAddrPort(answer, client)
		return err
	}
	_, _, err := p.conn.WriteMsgUDPAddrPort(answer, to, client)
	return err
}
