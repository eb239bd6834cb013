package images

import (
	"io/fs"
	"path"
	"time"
)

// headerSource implements fs.FileInfo for an entry, which lets archive/tar map its mode.
type headerSource struct {
	name string
	entry
}

func (h headerSource) Name() string       { return path.Base(h.name) }
func (h headerSource) Size() int64        { return int64(len(h.data)) }
func (h headerSource) Mode() fs.FileMode  { return h.mode }
func (h headerSource) ModTime() time.Time { return time.Unix(0, 0).UTC() }
func (h headerSource) IsDir() bool        { return h.mode.IsDir() }
func (h headerSource) Sys() any           { return nil }
