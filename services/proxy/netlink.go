package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// Attributes that package unix does not have.
const (
	nftaSetElemKeyEnd  = 10
	nftaSetDescConcat  = 2
	nftaSetFieldLen    = 1
	nftaGenID          = 1
	udataRuleComment   = 0
	udataElemComment   = 0
	udataKeyByteOrder  = 0
	udataDataByteOrder = 1
	hostEndian         = 1
	bigEndian          = 2
	nlaHeader          = 4
	nlaTypeMask        = 0x3fff
	nfgenLen           = 4
	maxElementsMessage = 60_000 // the length of an attribute has 16 bits
)

// batch is a transaction: nftables messages that the kernel applies all or none.
type batch struct {
	buf     []byte
	message int // start of the open message, or -1
	// The open list of elements, to which elements of the same kind are appended.
	list    int // start of the attribute, or -1
	listFor elementList
}

type elementList struct {
	op   uint16
	set  ruleset.Set
	ipv6 bool
}

func newBatch() *batch {
	b := &batch{message: -1, list: -1}
	b.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, 0)
	return b
}

// empty reports whether nothing is in the batch.
func (b *batch) empty() bool { return len(b.buf) <= unix.NLMSG_HDRLEN+nfgenLen }

// begin starts a message. The kernel wants the subsystem in the messages that enclose a batch.
func (b *batch) begin(kind, flags uint16, family uint8) {
	b.end()
	b.message = len(b.buf)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, 0) // length
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, unix.NLM_F_REQUEST|flags)
	b.buf = append(b.buf, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number and port
	b.buf = append(b.buf, family, unix.NFNETLINK_V0)
	subsystem := uint16(0)
	if kind == unix.NFNL_MSG_BATCH_BEGIN || kind == unix.NFNL_MSG_BATCH_END {
		subsystem = unix.NFNL_SUBSYS_NFTABLES
	}
	b.buf = binary.BigEndian.AppendUint16(b.buf, subsystem)
}

// nft starts a message about nftables.
func (b *batch) nft(kind, flags uint16, family uint8) {
	b.begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, family)
}

// end completes the open message.
func (b *batch) end() {
	if b.list >= 0 {
		b.close(b.list)
		b.list = -1
	}
	if b.message >= 0 {
		binary.NativeEndian.PutUint32(b.buf[b.message:], uint32(len(b.buf)-b.message))
		b.message = -1
	}
}

// open starts a nested attribute and returns its position for close.
func (b *batch) open(attr uint16) int {
	at := len(b.buf)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, 0)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, attr|unix.NLA_F_NESTED)
	return at
}

func (b *batch) close(at int) { binary.NativeEndian.PutUint16(b.buf[at:], uint16(len(b.buf)-at)) }

func (b *batch) attr(attr uint16, value []byte) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(nlaHeader+len(value)))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, attr)
	b.buf = append(b.buf, value...)
	b.pad()
}

// text appends a string. The kernel wants the zero byte.
func (b *batch) text(attr uint16, value string) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(nlaHeader+len(value)+1))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, attr)
	b.buf = append(append(b.buf, value...), 0)
	b.pad()
}

func (b *batch) number(attr uint16, value uint32) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, nlaHeader+4)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, attr)
	b.buf = binary.BigEndian.AppendUint32(b.buf, value)
}

func (b *batch) pad() {
	for len(b.buf)%unix.NLA_ALIGNTO != 0 {
		b.buf = append(b.buf, 0)
	}
}

// data appends a value as sets have it.
func (b *batch) data(attr uint16, value string) {
	at := b.open(attr)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(nlaHeader+len(value)))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, unix.NFTA_DATA_VALUE)
	b.buf = append(b.buf, value...)
	b.pad()
	b.close(at)
}

// verdict appends a verdict as maps have it.
func (b *batch) verdict(attr uint16, code int32, chain string) {
	at := b.open(attr)
	v := b.open(unix.NFTA_DATA_VERDICT)
	b.number(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		b.text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	b.close(v)
	b.close(at)
}

// elements opens a list of elements of a set.
func (b *batch) elements(op uint16, family uint8, set string) {
	flags := uint16(0)
	if op == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	b.nft(op, flags, family)
	b.text(unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	b.list = b.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	b.listFor = elementList{}
}

// element adds or deletes an element.
func (b *batch) element(op uint16, e *ruleset.Element) {
	kind := elementList{op, e.Set, e.IPv6}
	if b.list < 0 || b.listFor != kind || len(b.buf)-b.list > maxElementsMessage {
		b.elements(op, familyOf(e.IPv6).number, e.Set.Name())
		b.listFor = kind
	}
	at := b.open(unix.NFTA_LIST_ELEM)
	b.data(unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.End != "" {
		b.data(nftaSetElemKeyEnd, e.End)
	}
	if op == unix.NFT_MSG_NEWSETELEM {
		switch {
		case e.Set.IsVerdict():
			b.verdict(unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, e.Value)
		case e.Value != "":
			b.data(unix.NFTA_SET_ELEM_DATA, e.Value)
		}
		if e.Comment != "" {
			b.attr(unix.NFTA_SET_ELEM_USERDATA, userData(udataElemComment, e.Comment))
		}
	}
	b.close(at)
}

// userData encodes a text as nft stores it beside objects.
func userData(kind byte, text string) []byte {
	return append(append([]byte{kind, byte(len(text) + 1)}, text...), 0)
}

// expressions appends the expressions of a rule.
func (b *batch) expressions(family uint8, exprs []expr.Any) error {
	list := b.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range exprs {
		if ct, ok := e.(*expr.Ct); ok && (ct.Key == ctDstIP || ct.Key == ctDstIP6) {
			b.originalDst(ct)
			continue
		}
		text, err := expr.Marshal(family, e)
		if err != nil {
			return fmt.Errorf("encode %T: %w", e, err)
		}
		at := b.open(unix.NFTA_LIST_ELEM)
		b.buf = append(b.buf, text...)
		b.close(at)
	}
	b.close(list)
	return nil
}

// originalDst loads the destination before NAT. The library encodes the keys without a direction.
func (b *batch) originalDst(ct *expr.Ct) {
	at := b.open(unix.NFTA_LIST_ELEM)
	b.text(unix.NFTA_EXPR_NAME, "ct")
	data := b.open(unix.NFTA_EXPR_DATA)
	b.number(unix.NFTA_CT_KEY, uint32(ct.Key))
	b.number(unix.NFTA_CT_DREG, ct.Register)
	b.attr(unix.NFTA_CT_DIRECTION, []byte{0})
	b.close(data)
	b.close(at)
}

// socket is a netlink socket of the netfilter family. It is not safe for concurrent use.
type socket struct {
	*nl.NetlinkSocket
	seq     uint32
	commits uint32 // successful transactions: each is one generation of the ruleset
	sndbuf  int
	receive []byte
}

// openSocket opens a socket in a network namespace, or in that of the process.
func openSocket(ns netns.NsHandle) (*socket, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	// Errors come without the message, so that those of a large batch fit in the buffer.
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	return &socket{NetlinkSocket: s, receive: make([]byte, 64<<10)}, nil
}

// commit sends a batch as one transaction.
func (s *socket) commit(b *batch) error {
	if b.empty() {
		return nil
	}
	b.end()
	b.begin(unix.NFNL_MSG_BATCH_END, 0, 0)
	b.end()
	s.seq++
	last := 0
	for at := 0; at < len(b.buf); { // number the messages; the last one before the end asks for an answer
		n := int(binary.NativeEndian.Uint32(b.buf[at:]))
		binary.NativeEndian.PutUint32(b.buf[at+8:], s.seq)
		if at+n < len(b.buf) {
			last = at
		}
		at += n
	}
	flags := binary.NativeEndian.Uint16(b.buf[last+6:])
	binary.NativeEndian.PutUint16(b.buf[last+6:], flags|unix.NLM_F_ACK)
	if need := 2 * len(b.buf); need > s.sndbuf {
		if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, need); err != nil {
			return fmt.Errorf("size of netlink buffer: %w", err)
		}
		s.sndbuf = need
	}
	if err := unix.Sendto(s.GetFd(), b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send transaction: %w", err)
	}
	err := s.answers(s.seq)
	if err == nil {
		s.commits++
	}
	return err
}

// answers reads the answers to a transaction, which the kernel has written before the send returned.
func (s *socket) answers(seq uint32) error {
	answered := false
	var failure error
	for {
		n, err := recv(s.GetFd(), s.receive)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return fmt.Errorf("receive result of transaction: %w", err)
		}
		err = eachMessage(s.receive[:n], func(kind uint16, of uint32, body []byte) error {
			if kind != unix.NLMSG_ERROR || of != seq || len(body) < 4 {
				return nil
			}
			answered = true
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 && failure == nil {
				failure = os.NewSyscallError("nftables transaction", unix.Errno(-code))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if failure == nil && !answered {
		return errors.New("nftables transaction: no answer")
	}
	return failure
}

func recv(fd int, into []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, into, unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// eachMessage calls f with each netlink message of a buffer.
func eachMessage(b []byte, f func(kind uint16, seq uint32, body []byte) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return errors.New("netlink message damaged")
		}
		body := b[unix.NLMSG_HDRLEN:n]
		if err := f(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), body); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// eachAttr calls f with each attribute.
func eachAttr(b []byte, f func(attr uint16, value []byte)) {
	for len(b) >= nlaHeader {
		n := int(binary.NativeEndian.Uint16(b))
		if n < nlaHeader || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&nlaTypeMask, b[nlaHeader:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// errDone ends a dump.
var errDone = errors.New("done")

// query sends one request and calls f with the attributes of each answer. The values are valid
// during the call only. What does not exist has no answers.
func (s *socket) query(kind, flags uint16, family uint8, attrs func(*batch), f func(attr uint16, value []byte)) error {
	b := &batch{message: -1, list: -1}
	b.nft(kind, flags, family)
	if attrs != nil {
		attrs(b)
	}
	b.end()
	s.seq++
	seq := s.seq
	binary.NativeEndian.PutUint32(b.buf[8:], seq)
	if err := unix.Sendto(s.GetFd(), b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send query: %w", err)
	}
	for {
		n, err := recv(s.GetFd(), s.receive)
		if err != nil {
			return fmt.Errorf("receive answer: %w", err)
		}
		err = eachMessage(s.receive[:n], func(kind uint16, of uint32, body []byte) error {
			switch {
			case of != seq:
			case kind == unix.NLMSG_DONE:
				return errDone
			case kind == unix.NLMSG_ERROR && len(body) >= 4:
				code := int32(binary.NativeEndian.Uint32(body))
				if code == 0 || code == -int32(unix.ENOENT) {
					return errDone
				}
				return os.NewSyscallError("nftables query", unix.Errno(-code))
			case len(body) >= nfgenLen:
				eachAttr(body[nfgenLen:], f)
				if flags&unix.NLM_F_DUMP == 0 {
					return errDone
				}
			}
			return nil
		})
		if errors.Is(err, errDone) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
