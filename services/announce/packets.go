package announce

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Offsets and values of Ethernet, ARP, IPv6 and ICMPv6.
const (
	ethernetHeader = 14
	arpLength      = 28
	arpRequest     = 1
	arpReply       = 2
	ipv6Header     = 40
	icmpv6         = 58
	solicitation   = 135
	advertisement  = 136
	ndpLength      = 24 // without options
	hopLimit       = 255
	flagSolicited  = 0x40
	flagOverride   = 0x20
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// arpPacket is an ARP packet for IPv4 over Ethernet.
type arpPacket struct {
	operation              uint16
	senderMAC              net.HardwareAddr
	senderIP, targetIP     netip.Addr
	ethernetSrc, targetMAC net.HardwareAddr
}

func ethernet(dst, src net.HardwareAddr, protocol uint16) []byte {
	f := make([]byte, 0, 128)
	f = append(append(f, dst...), src...)
	return binary.BigEndian.AppendUint16(f, protocol)
}

// encodeARP returns a frame.
func encodeARP(dst net.HardwareAddr, p arpPacket) []byte {
	f := ethernet(dst, p.senderMAC, protocolARP)
	f = append(f, 0, 1, 8, 0, 6, 4) // Ethernet, IPv4, and the lengths of their addresses
	f = binary.BigEndian.AppendUint16(f, p.operation)
	f = append(append(f, p.senderMAC...), p.senderIP.AsSlice()...)
	return append(append(f, p.targetMAC...), p.targetIP.AsSlice()...)
}

// decodeARP returns false if the frame is not ARP for IPv4 over Ethernet.
func decodeARP(f []byte) (p arpPacket, ok bool) {
	if len(f) < ethernetHeader+arpLength || string(f[ethernetHeader:ethernetHeader+6]) != "\x00\x01\x08\x00\x06\x04" {
		return p, false
	}
	p.ethernetSrc = net.HardwareAddr(f[6:12])
	a := f[ethernetHeader:]
	p.operation = binary.BigEndian.Uint16(a[6:])
	p.senderMAC, p.targetMAC = net.HardwareAddr(a[8:14]), net.HardwareAddr(a[18:24])
	p.senderIP, p.targetIP = netip.AddrFrom4([4]byte(a[14:18])), netip.AddrFrom4([4]byte(a[24:28]))
	return p, true
}

// neighborPacket is a neighbor solicitation, which is a request for the link-layer address of a target, or a
// neighbor advertisement. The source of a solicitation is unspecified for duplicate address detection.
type neighborPacket struct {
	advertisement  bool
	ethernetSrc    net.HardwareAddr
	source, target netip.Addr
}

// decodeNDP returns false if the frame is neither a valid neighbor solicitation nor an advertisement.
func decodeNDP(f []byte) (p neighborPacket, ok bool) {
	const ip, icmp = ethernetHeader, ethernetHeader + ipv6Header
	if len(f) < icmp+ndpLength || f[ip+6] != icmpv6 || f[ip+7] != hopLimit || f[icmp+1] != 0 ||
		f[icmp] != solicitation && f[icmp] != advertisement {
		return p, false
	}
	p.advertisement = f[icmp] == advertisement
	p.ethernetSrc = net.HardwareAddr(f[6:12])
	p.source = netip.AddrFrom16([16]byte(f[ip+8 : ip+24]))
	p.target = netip.AddrFrom16([16]byte(f[icmp+8 : icmp+24]))
	return p, true
}

// encodeDAD returns a neighbor solicitation for duplicate address detection.
func encodeDAD(mac net.HardwareAddr, target netip.Addr) []byte {
	group := solicitedNode(target).As16()
	f := ethernet(net.HardwareAddr{0x33, 0x33, group[12], group[13], group[14], group[15]}, mac, protocolIPv6)
	f = append(f, 0x60, 0, 0, 0, 0, ndpLength, icmpv6, hopLimit)
	source, to := netip.IPv6Unspecified().As16(), target.As16()
	f = append(append(f, source[:]...), group[:]...)
	f = append(f, solicitation, 0, 0, 0, 0, 0, 0, 0)
	f = append(f, to[:]...)
	icmp := f[ethernetHeader+ipv6Header:]
	binary.BigEndian.PutUint16(icmp[2:], checksum(source, group, icmp))
	return f
}

// encodeNA returns a neighbor advertisement for an address of this node. It overrides entries of caches.
func encodeNA(dst net.HardwareAddr, to, address netip.Addr, mac net.HardwareAddr, solicited bool) []byte {
	const payload = ndpLength + 8
	f := ethernet(dst, mac, protocolIPv6)
	f = append(f, 0x60, 0, 0, 0, 0, payload, icmpv6, hopLimit)
	src, target := address.As16(), to.As16()
	f = append(append(f, src[:]...), target[:]...)
	flags := byte(flagOverride)
	if solicited {
		flags |= flagSolicited
	}
	f = append(f, advertisement, 0, 0, 0, flags, 0, 0, 0)
	f = append(f, src[:]...)
	f = append(append(f, 2, 1), mac...) // option: target link-layer address
	icmp := f[ethernetHeader+ipv6Header:]
	binary.BigEndian.PutUint16(icmp[2:], checksum(src, target, icmp))
	return f
}

// checksum returns the checksum of an ICMPv6 packet whose checksum field is 0.
func checksum(src, dst [16]byte, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + icmpv6
	for _, part := range [][]byte{src[:], dst[:], icmp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i])<<8 | uint32(part[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func allNodes() netip.Addr { return netip.MustParseAddr("ff02::1") }

func allNodesMAC() net.HardwareAddr { return net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1} }

// solicitedNode returns the multicast group of the neighbor solicitations for an address.
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}
