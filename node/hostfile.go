package node

import (
	"os"
	"sync"
)

// HostFile is a small file of the host that others write, such as resolv.conf.
// It may be used by many goroutines at once.
type HostFile struct {
	Path string

	mu   sync.Mutex
	was  os.FileInfo // of the file whose text is kept; nil: none
	text []byte
}

// Read is what the file says now. A file that is as it was is not read again.
func (f *HostFile) Read() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.Path)
	if err != nil {
		f.was, f.text = nil, nil
		return nil, err
	}
	if f.was != nil && os.SameFile(f.was, now) && f.was.Size() == now.Size() && f.was.ModTime().Equal(now.ModTime()) {
		return f.text, nil
	}
	f.was = nil // what is written meanwhile makes another time: it is read the next time
	if f.text, err = os.ReadFile(f.Path); err == nil {
		f.was = now
	}
	return f.text, err
}
