package offline

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ContentStore stores blobs in the runtime. Errors of the reader are returned unchanged. The digest
// is empty if it is unknown.
type ContentStore interface {
	WriteBlob(ctx context.Context, name string, r io.Reader, expected digest.Digest, size int64) error
	// SetReferences lets a blob reference others, with labels of containerd's garbage collector.
	SetReferences(ctx context.Context, blob digest.Digest, labels map[string]string) error
}

// Import is the import of one archive into the runtime.
type Import interface {
	ContentStore
	Unpack(ctx context.Context, config digest.Digest, layers []ocispec.Descriptor, diffs []digest.Digest) error
	// TagImage returns when pods can use the image under that name.
	TagImage(ctx context.Context, name string, target ocispec.Descriptor) error
	// Close lets the runtime collect content that no image references.
	Close(ctx context.Context) error
}

// Runtime is the destination of the images.
type Runtime interface {
	HasImage(ctx context.Context, name string) (bool, error)
	Import(ctx context.Context, id string) (Import, error)
}

// Defaults.
const (
	defaultParallel  = 2
	defaultInterval  = 30 * time.Second
	retryInterval    = 5 * time.Second // before the retry of an archive that the runtime could not import
	maxRetryInterval = 10 * time.Minute
	settleTime       = 2 * time.Second // an archive without events is complete at this age
)

// Options configures an Importer.
type Options struct {
	Dir      string // of the archives; created if it does not exist
	Records  string // file with the imported archives
	Runtime  Runtime
	Parallel int           // archives read concurrently; 0: 2
	Interval time.Duration // between two scans of the directory and the images; 0: 30 s
	Log      *slog.Logger

	OnImported  func(file string, images []Image) // called when images became available
	OnFailed    func(file string, err error)      // called once for an archive that cannot be imported, or not now
	IsTransient func(err error) bool              // reports whether an error is a temporary one of the runtime
}

// State is the state of an archive.
type State string

// The states.
const (
	StateWaiting   State = "waiting" // for its writer, a free worker or the runtime
	StateImporting State = "importing"
	StateImported  State = "imported"
	StateBroken    State = "broken" // until the archive changes
)

// File is an archive in the directory.
type File struct {
	Path    string
	State   State
	Images  []Image // its images, once they are known
	Message string  // why it is broken or waits after a failure
}

// Image is an image of an archive.
type Image struct {
	Name string `json:"name"` // in full form
	ID   string `json:"id"`   // as in CRI
}

// Importer imports the archives of a directory.
type Importer struct {
	o    Options
	mu   sync.Mutex
	show []File // result of Files, sorted by path; never modified in place
}

// New returns an Importer. Run does the work.
func New(o Options) *Importer {
	if o.Parallel <= 0 {
		o.Parallel = defaultParallel
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	return &Importer{o: o}
}

// Files returns the state of each archive.
func (i *Importer) Files() []File {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.show
}

// Pinned returns the images to keep because an archive contains them: the path of the archive by
// image ID.
func (i *Importer) Pinned() map[string]string {
	out := map[string]string{}
	for _, f := range i.Files() {
		for _, img := range f.Images {
			if _, ok := out[img.ID]; !ok {
				out[img.ID] = f.Path
			}
		}
	}
	return out
}
