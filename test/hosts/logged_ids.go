package hosts

import (
	"bytes"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// idLength is the length of the IDs that containerd generates for sandboxes and containers.
const idLength = 64

// idSet holds the IDs in a log, including those of objects that no longer exist. The zero value is ready for
// use. It is safe for concurrent use.
type idSet struct {
	mu     sync.Mutex
	offset int64 // end of the last line that was searched
	ids    map[string]bool
}

// read returns all IDs in the complete lines of the file, sorted. Later calls read only what was appended:
// tests search a long log many times. A file that became shorter is read from its start.
func (s *idSet) read(file string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, err := s.readAppended(file); err == nil {
		for _, id := range findIDs(text) {
			s.ids[strings.Clone(id)] = true
		}
	}
	return slices.Sorted(maps.Keys(s.ids))
}

// readAppended returns the complete lines after the offset and moves it. The caller holds s.mu.
func (s *idSet) readAppended(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if s.ids == nil || info.Size() < s.offset {
		s.offset, s.ids = 0, map[string]bool{}
	}
	text, err := io.ReadAll(io.NewSectionReader(f, s.offset, info.Size()-s.offset))
	if err != nil {
		return "", err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	s.offset += int64(len(text))
	return string(text), nil
}

// findIDs returns the words of the text that are IDs. It is faster than a regular expression, in particular
// under the race detector.
func findIDs(text string) (ids []string) {
	start, hexOnly := 0, true
	for i := range len(text) + 1 {
		c := byte(' ')
		if i < len(text) {
			c = text[i]
		}
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f':
		case c >= 'g' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
			hexOnly = false
		default:
			if hexOnly && i-start == idLength {
				ids = append(ids, text[start:i])
			}
			start, hexOnly = i+1, true
		}
	}
	return ids
}
