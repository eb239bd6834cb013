package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// The layout of a bbolt page: a header, elements of one size, and what they
// point to.
const (
	pageHeader  = 16 // id, flags, count, overflow
	pageElement = 16

	pageBranch = 0x01
	pageLeaf   = 0x02
	pageFree   = 0x10

	noFreeList   = ^uint64(0)
	bucketFlag   = 1
	bucketHeader = 16 // root page, sequence
	maxBuckets   = 8  // nested in each other
)

// verify proves that every page of the file can be walked, reading it as plain
// bytes. bbolt maps the file and trusts it: what is missing, or points outside,
// would be a fault, and a wrong length an endless loop. It also checks what
// bbolt, which works out on opening what is free, would panic over.
func verify(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	st, err := f.Stat()
	if err != nil {
		return err
	}
	m, magic, err := newestMeta(f)
	switch {
	case err != nil:
		return err
	case m == nil && !magic:
		return &unusableError{"alien", "the store was not written by berth"}
	case m == nil:
		return damagedError("neither of its headers is whole")
	case m.high > uint64(st.Size())/m.pageSize:
		return damagedError("the file ends at %d bytes and should have %d pages of %d", st.Size(), m.high, m.pageSize)
	}
	v := verifier{file: f, meta: *m, seen: map[uint64]bool{0: true, 1: true}}
	if err := v.page(m.root, bounds{}, 0, 0); err != nil {
		return err
	}
	if m.free != noFreeList {
		return v.freeList(m.free)
	}
	return nil
}

type verifier struct {
	file *os.File
	meta meta
	seen map[uint64]bool // pages in use
}

// read returns a page with its overflow. Every page is used once.
func (v *verifier) read(id uint64) ([]byte, error) {
	head := make([]byte, pageHeader)
	if id < 2 || id >= v.meta.high {
		return nil, damagedError("it refers to page %d of %d", id, v.meta.high)
	}
	if _, err := v.file.ReadAt(head, int64(id*v.meta.pageSize)); err != nil {
		return nil, err
	}
	more := uint64(binary.LittleEndian.Uint32(head[12:]))
	if got := binary.LittleEndian.Uint64(head); got != id || id+more >= v.meta.high {
		return nil, damagedError("page %d says that it is page %d with %d more", id, got, more)
	}
	for i := id; i <= id+more; i++ {
		if v.seen[i] {
			return nil, damagedError("page %d is used twice", i)
		}
		v.seen[i] = true
	}
	b := make([]byte, (more+1)*v.meta.pageSize)
	_, err := v.file.ReadAt(b, int64(id*v.meta.pageSize))
	return b, err
}

// bounds are what the pages above say of the keys below: min ≤ key < max. nil:
// no bound.
type bounds struct{ min, max []byte }

func (b bounds) admit(key []byte) bool {
	return (b.min == nil || bytes.Compare(b.min, key) <= 0) && (b.max == nil || bytes.Compare(key, b.max) < 0)
}

// page verifies a page of a bucket and everything below it.
func (v *verifier) page(id uint64, in bounds, level, buckets int) error {
	if level > 64 {
		return damagedError("page %d is too deep", id)
	}
	b, err := v.read(id)
	if err != nil {
		return err
	}
	switch flags := binary.LittleEndian.Uint16(b[8:]); flags {
	case pageBranch:
		return v.branch(b, id, in, level, buckets)
	case pageLeaf:
		return v.leaf(b, id, in, buckets)
	default:
		return damagedError("page %d has flags %#x", id, flags)
	}
}

func (v *verifier) branch(b []byte, id uint64, in bounds, level, buckets int) error {
	count := int(binary.LittleEndian.Uint16(b[10:]))
	if count == 0 || pageHeader+count*pageElement > len(b) {
		return damagedError("page %d has %d branches", id, count)
	}
	keys := make([][]byte, count, count+1)
	for i := range keys {
		at := pageHeader + i*pageElement
		key, err := span(b, at, binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:]))
		if err != nil || !in.admit(key) || i > 0 && bytes.Compare(keys[i-1], key) >= 0 {
			return damagedError("page %d has a bad key", id)
		}
		keys[i] = key
	}
	keys = append(keys, in.max)
	for i := range count {
		child := binary.LittleEndian.Uint64(b[pageHeader+i*pageElement+8:])
		if err := v.page(child, bounds{keys[i], keys[i+1]}, level+1, buckets); err != nil {
			return err
		}
	}
	return nil
}

// leaf verifies a leaf page, or an inline bucket, which is one within a value.
func (v *verifier) leaf(b []byte, id uint64, in bounds, buckets int) error {
	count := int(binary.LittleEndian.Uint16(b[10:]))
	if pageHeader+count*pageElement > len(b) {
		return damagedError("page %d has %d elements", id, count)
	}
	var last []byte
	for i := range count {
		at := pageHeader + i*pageElement
		e := b[at:]
		pos, ksize, vsize := binary.LittleEndian.Uint32(e[4:]), binary.LittleEndian.Uint32(e[8:]), binary.LittleEndian.Uint32(e[12:])
		key, err := span(b, at, pos, ksize)
		if err != nil || len(key) == 0 || !in.admit(key) || i > 0 && bytes.Compare(last, key) >= 0 {
			return damagedError("page %d has a bad key", id)
		}
		last = key
		value, err := span(b, at+int(ksize), pos, vsize)
		if err != nil {
			return damagedError("page %d has a bad value", id)
		}
		switch flags := binary.LittleEndian.Uint32(e); flags {
		case 0:
		case bucketFlag:
			if err := v.bucket(value, id, buckets+1); err != nil {
				return err
			}
		default:
			return damagedError("page %d has an element with flags %#x", id, flags)
		}
	}
	return nil
}

// bucket verifies what the value of a bucket points to, or holds.
func (v *verifier) bucket(value []byte, id uint64, buckets int) error {
	switch {
	case buckets > maxBuckets:
		return damagedError("page %d has buckets nested too deep", id)
	case len(value) < bucketHeader:
		return damagedError("page %d has a bucket without content", id)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return v.page(root, bounds{}, 0, buckets)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || binary.LittleEndian.Uint64(inline) != 0 || binary.LittleEndian.Uint16(inline[8:]) != pageLeaf || binary.LittleEndian.Uint32(inline[12:]) != 0 {
		return damagedError("page %d has a bad inline bucket", id)
	}
	return v.leaf(inline, id, bounds{}, buckets)
}

// freeList verifies the list of free pages that other writers of the format
// keep: nothing in use may be on it.
func (v *verifier) freeList(id uint64) error {
	b, err := v.read(id)
	if err != nil {
		return err
	}
	count, at := uint64(binary.LittleEndian.Uint16(b[10:])), uint64(pageHeader)
	if count == 0xFFFF {
		count, at = binary.LittleEndian.Uint64(b[at:]), at+8
	}
	if binary.LittleEndian.Uint16(b[8:]) != pageFree || count > (uint64(len(b))-at)/8 {
		return damagedError("page %d is no list of free pages", id)
	}
	for i := range count {
		free := binary.LittleEndian.Uint64(b[at+8*i:])
		if free < 2 || free >= v.meta.high || v.seen[free] {
			return damagedError("page %d is free and in use", free)
		}
		v.seen[free] = true
	}
	return nil
}

// span returns size bytes of b, offset bytes after at.
func span(b []byte, at int, offset, size uint32) ([]byte, error) {
	from := uint64(at) + uint64(offset)
	if to := from + uint64(size); to <= uint64(len(b)) {
		return b[from:to], nil
	}
	return nil, fmt.Errorf("%d bytes at %d of %d", size, from, len(b))
}
