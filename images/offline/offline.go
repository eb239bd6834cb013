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

// ContentStore takes blobs into the runtime's store. What a reader says is wrong comes
// back as it is; the digest is empty where it is not known yet.
type ContentStore interface {
	WriteBlob(ctx context.Context, name string, r io.Reader, expected digest.Digest, size int64) error
	// SetReferences has a blob keep others, by the labels of containerd's garbage collector.
	SetReferences(ctx context.Context, blob digest.Digest, labels map[string]string) error
}

// Import is one archive on its way into the runtime.
type Import interface {
	ContentStore
	Unpack(ctx context.Context, config digest.Digest, layers []ocispec.Descriptor, diffs []digest.Digest) error
	// TagImage returns when pods can use the image by that name.
	TagImage(ctx context.Context, name string, target ocispec.Descriptor) error
	// Close lets the runtime collect what no image refers to.
	Close(ctx context.Context) error
}

// Runtime is where images go.
type Runtime interface {
	HasImage(ctx context.Context, name string) (bool, error)
	Import(ctx context.Context, id string) (Import, error)
}

// Defaults.
const (
	defaultParallel = 2
	defaultEvery    = 30 * time.Second
	later           = 5 * time.Second // until the runtime is asked again that could not take a file
	laterMost       = 10 * time.Minute
	quiet           = 2 * time.Second // a file nobody tells of is whole when it is that old
)

// Options says where the archives are and who is told.
type Options struct {
	Dir      string // of the archives; it is made if it is not there
	Records  string // file of what was imported
	Runtime  Runtime
	Parallel int           // files read at once; 0: 2
	Interval time.Duration // between two looks at the folder and the images; 0: 30 s
	Log      *slog.Logger

	OnImported  func(file string, images []Image) // they are there now and were not
	OnFailed    func(file string, err error)      // it cannot be imported, or not now; told once
	IsTransient func(err error) bool              // it is the runtime's matter and passes: try again
}

// State is how far a file has come.
type State string

// The states.
const (
	StateWaiting   State = "waiting" // for its writer, its turn or the runtime
	StateImporting State = "importing"
	StateImported  State = "imported"
	StateBroken    State = "broken" // it stays so until the file changes
)

// File is an archive of the folder.
type File struct {
	Path    string
	State   State
	Images  []Image // that it has, once that is known
	Message string  // it is broken, or waits after a failure
}

// Image is an image that a file has.
type Image struct {
	Name string `json:"name"` // in full
	ID   string `json:"id"`   // as CRI has it
}

// Importer is the folder with its images.
type Importer struct {
	o    Options
	mu   sync.Mutex
	show []File // what Files returns, by path; never changed in place
}

// New returns the folder's images; Run does the work.
func New(o Options) *Importer {
	if o.Parallel <= 0 {
		o.Parallel = defaultParallel
	}
	if o.Interval <= 0 {
		o.Interval = defaultEvery
	}
	return &Importer{o: o}
}

// Files tells how far each file has come.
func (i *Importer) Files() []File {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.show
}

// Pinned tells which images stay because a file of the folder has them: image ID to
// the file's path.
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
