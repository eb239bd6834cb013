package announce

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"berth/services/announce/election"
)

// A beat is sent in one or more frames:
//
//	magic 8 | flags 1 | part 1 | parts 1 | start 8 | sequence 8 | length of name 1 | name | claims 22 each
//
// A claim is an address of 16 bytes (IPv4 is mapped), a level, a phase, and a term of 4 bytes.
const (
	beatMagic     = "berthLB\x01"
	beatHeader    = len(beatMagic) + 3 + 8 + 8 + 1
	claimSize     = 16 + 1 + 1 + 4
	claimsPerPart = 50
	maxParts      = 255
	flagLeaving   = 1
)

var errBeat = errors.New("not a beat")

// encodeBeat returns the payloads of the frames. Claims beyond the maximum are left out.
func encodeBeat(b election.Beat) (parts [][]byte) {
	name := b.Node[:min(len(b.Node), 253)]
	claims := b.Claims[:min(len(b.Claims), claimsPerPart*maxParts)]
	n := max(1, (len(claims)+claimsPerPart-1)/claimsPerPart)
	for i := range n {
		var flags byte
		if b.Leaving {
			flags = flagLeaving
		}
		p := append([]byte(beatMagic), flags, byte(i), byte(n))
		p = binary.BigEndian.AppendUint64(p, b.Start)
		p = binary.BigEndian.AppendUint64(p, b.Sequence)
		p = append(append(p, byte(len(name))), name...)
		for _, c := range claims[i*claimsPerPart : min(len(claims), (i+1)*claimsPerPart)] {
			a := c.Address.As16()
			p = append(append(p, a[:]...), byte(c.Level), byte(c.Phase))
			p = binary.BigEndian.AppendUint32(p, c.Term)
		}
		// The Ethernet padding of a short frame would read as a claim without an address.
		parts = append(parts, p)
	}
	return parts
}

// beatPart is the content of one frame.
type beatPart struct {
	election.Beat

	part, parts int
}

// decodeBeat decodes the payload of a frame.
func decodeBeat(p []byte) (b beatPart, err error) {
	if len(p) < beatHeader || string(p[:len(beatMagic)]) != beatMagic {
		return b, errBeat
	}
	p = p[len(beatMagic):]
	b.Leaving, b.part, b.parts = p[0]&flagLeaving != 0, int(p[1]), int(p[2])
	b.Start, b.Sequence = binary.BigEndian.Uint64(p[3:]), binary.BigEndian.Uint64(p[11:])
	n := int(p[19])
	if p = p[20:]; b.part >= b.parts || n == 0 || n > len(p) {
		return b, errBeat
	}
	b.Node, p = string(p[:n]), p[n:]
	for ; len(p) >= claimSize; p = p[claimSize:] {
		c := election.Claim{
			Address: netip.AddrFrom16([16]byte(p[:16])).Unmap(), Level: election.Level(p[16]),
			Phase: election.Phase(p[17]), Term: binary.BigEndian.Uint32(p[18:]),
		}
		if c.Address.IsUnspecified() { // padding
			continue
		}
		if c.Level < election.Terminating || c.Level > election.Ready || c.Phase > election.Announcing {
			return b, errBeat
		}
		b.Claims = append(b.Claims, c)
	}
	return b, nil
}

// assembly joins the parts of the beats of one host.
type assembly struct {
	start, sequence uint64
	have            map[int]election.Beat
}

// add returns the beat if the part completes it.
func (a *assembly) add(p beatPart) (election.Beat, bool) {
	if p.Start != a.start || p.Sequence != a.sequence || a.have == nil {
		*a = assembly{p.Start, p.Sequence, map[int]election.Beat{}}
	}
	if a.have[p.part] = p.Beat; len(a.have) < p.parts {
		return election.Beat{}, false
	}
	out := p.Beat
	out.Claims = nil
	for i := range p.parts {
		out.Claims = append(out.Claims, a.have[i].Claims...)
	}
	a.have = nil
	return out, true
}
