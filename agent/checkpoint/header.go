package checkpoint

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
)

// The first two pages of a bbolt file are meta pages, written in turn. These
// are the offsets of what is needed here, in the machine's byte order, which is
// little-endian everywhere that berth runs.
const (
	metaOffset   = 16 // after the page header
	metaMagic    = 0
	metaPageSize = 8
	metaRoot     = 16 // page of the root bucket
	metaFree     = 32 // page of the list of free pages
	metaHigh     = 40 // number of pages in use
	metaTx       = 48
	metaChecksum = 56
	metaSize     = 64

	boltMagic = 0xED0CDAED
)

// meta is what a valid meta page says.
type meta struct{ pageSize, root, free, high, tx uint64 }

// newestMeta returns the valid meta page of the last commit, nil if there is
// none, and whether any looked like a meta page at all.
func newestMeta(f io.ReaderAt) (newest *meta, magic bool, err error) {
	offsets := []int64{0}
	for i := range 15 { // the second page's place depends on the page size
		offsets = append(offsets, 1024<<i)
	}
	for _, at := range offsets {
		var b [metaSize]byte
		if _, err := f.ReadAt(b[:], at+metaOffset); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, false, err
		}
		if binary.LittleEndian.Uint32(b[metaMagic:]) != boltMagic {
			continue
		}
		magic = true
		h := fnv.New64a()
		_, _ = h.Write(b[:metaChecksum]) // a hash never fails
		if h.Sum64() != binary.LittleEndian.Uint64(b[metaChecksum:]) {
			continue
		}
		m := meta{
			pageSize: uint64(binary.LittleEndian.Uint32(b[metaPageSize:])),
			root:     binary.LittleEndian.Uint64(b[metaRoot:]),
			free:     binary.LittleEndian.Uint64(b[metaFree:]),
			high:     binary.LittleEndian.Uint64(b[metaHigh:]),
			tx:       binary.LittleEndian.Uint64(b[metaTx:]),
		}
		if m.pageSize < 1024 || m.pageSize > 1<<24 || m.pageSize&(m.pageSize-1) != 0 || at != 0 && uint64(at) != m.pageSize {
			continue
		}
		if newest == nil || m.tx > newest.tx {
			newest = &m
		}
	}
	return newest, magic, nil
}
