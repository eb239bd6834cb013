package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the largest UDP message that is requested and sent: larger ones may be fragmented.
const udpSize = 1232

// dialer opens a connection to an upstream server. Each UDP connection has a random port of its own
// and receives packets of that server only.
type dialer func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)

// dial is the dialer of the operating system.
func dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, to.String())
}

// exchange queries one upstream server: over UDP, then over TCP if the answer is truncated, and without
// EDNS if the server does not understand it. It returns when ctx is done at the latest.
func exchange(ctx context.Context, dial dialer, to netip.AddrPort, q question) (*dns.Msg, error) {
	m := &dns.Msg{}
	m.SetQuestion(q.name, q.qtype)
	m.CheckingDisabled = q.cd
	m.SetEdns0(udpSize, q.do)
	answer, err := exchangeOver(ctx, dial, "udp", to, m)
	if err == nil && answer.IsEdns0() == nil &&
		(answer.Rcode == dns.RcodeFormatError || answer.Rcode == dns.RcodeNotImplemented) {
		m.Extra = nil
		answer, err = exchangeOver(ctx, dial, "udp", to, m)
	}
	if err == nil && answer.Truncated {
		answer, err = exchangeOver(ctx, dial, "tcp", to, m)
	}
	return answer, err
}

// exchangeOver sends a question with a new random ID and returns the answer that belongs to it. It
// ignores all other messages.
func exchangeOver(ctx context.Context, dial dialer, network string, to netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	m.Id = dns.Id()
	packed, err := m.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, network, to)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // ends Read and Write
	if network == "tcp" {
		packed = withLength(packed)
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, cause(ctx, err)
	}
	buf := make([]byte, 4096)
	for {
		var n int
		if network == "tcp" {
			buf, err = readTCP(conn)
			n = len(buf)
		} else {
			n, err = conn.Read(buf)
		}
		if err != nil {
			return nil, cause(ctx, err)
		}
		answer := &dns.Msg{}
		switch err := answer.Unpack(buf[:n]); {
		case err == nil && belongs(m, answer):
			return answer, nil
		case network == "tcp":
			return nil, errors.New("the answer does not belong to the question")
		}
	}
}

// withLength returns a message with its length before it.
func withLength(packed []byte) []byte {
	length := uint16(len(packed)) // it is at most 64 KiB
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(packed)), length), packed...)
}

// readTCP reads a message with its length before it.
func readTCP(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// cause returns the error of the context if that has ended a read or a write.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return err
}

// belongs reports whether a message is the answer to a question. A server that does not understand a
// message may leave the question out.
func belongs(q, a *dns.Msg) bool {
	if a.Id != q.Id || !a.Response || a.Opcode != dns.OpcodeQuery {
		return false
	}
	if len(a.Question) == 0 {
		return a.Rcode == dns.RcodeFormatError || a.Rcode == dns.RcodeNotImplemented
	}
	is, want := a.Question[0], q.Question[0]
	return len(a.Question) == 1 && is.Qtype == want.Qtype && is.Qclass == want.Qclass &&
		strings.EqualFold(is.Name, want.Name)
}
