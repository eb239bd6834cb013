package offline

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fakeRuntime records imported images. The content of an import counts once it is tagged.
type fakeRuntime struct {
	mu        sync.Mutex
	images    map[string]digest.Digest
	imports   int
	open      int
	maxOpen   int // concurrent imports
	importErr error
	blobErr   error         // of each blob
	hold      chan struct{} // blocks imports, if set
}

func (r *fakeRuntime) HasImage(_ context.Context, name string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.images[name]
	return ok, nil
}

func (r *fakeRuntime) Import(ctx context.Context, _ string) (Import, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.importErr != nil {
		return nil, r.importErr
	}
	r.imports++
	r.open++
	r.maxOpen = max(r.maxOpen, r.open)
	return &fakeImport{r: r, blobs: map[digest.Digest]bool{}}, nil
}

func (r *fakeRuntime) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for n := range r.images {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (r *fakeRuntime) importCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.imports
}

type fakeImport struct {
	r        *fakeRuntime
	blobs    map[digest.Digest]bool
	unpacked int
}

func (i *fakeImport) WriteBlob(ctx context.Context, _ string, from io.Reader, want digest.Digest, size int64) error {
	i.r.mu.Lock()
	hold, blobErr := i.r.hold, i.r.blobErr
	i.r.mu.Unlock()
	if blobErr != nil {
		return blobErr
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	data, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	got := digest.FromBytes(data)
	if want != "" && got != want || int64(len(data)) != size {
		return errors.New("reader accepted a damaged blob")
	}
	i.blobs[got] = true
	return nil
}

func (i *fakeImport) SetReferences(_ context.Context, blob digest.Digest, labels map[string]string) error {
	for _, to := range labels {
		if !i.blobs[blob] || !i.blobs[digest.Digest(to)] {
			return errors.New("references of a missing blob")
		}
	}
	return nil
}

func (i *fakeImport) Unpack(_ context.Context, config digest.Digest, layers []ocispec.Descriptor,
	diffs []digest.Digest) error {
	if len(layers) != len(diffs) || !i.blobs[config] {
		return errors.New("unpack of an incomplete image")
	}
	i.unpacked++
	return nil
}

func (i *fakeImport) TagImage(_ context.Context, name string, target ocispec.Descriptor) error {
	if !i.blobs[target.Digest] || i.unpacked == 0 {
		return errors.New("tag before the content is complete")
	}
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	i.r.images[name] = target.Digest
	return nil
}

func (i *fakeImport) Close(context.Context) error {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	i.r.open--
	return nil
}

// archiveBuilder builds an archive with its files in order.
type archiveBuilder struct {
	names []string
	data  map[string][]byte
}

func (p *archiveBuilder) put(name string, data []byte) {
	if p.data == nil {
		p.data = map[string][]byte{}
	}
	if _, ok := p.data[name]; !ok {
		p.names = append(p.names, name)
	}
	p.data[name] = data
}

func (p *archiveBuilder) blob(data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	p.put("blobs/sha256/"+d.Encoded(), data)
	return ocispec.Descriptor{Digest: d, Size: int64(len(data))}
}

func (p *archiveBuilder) tar() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range p.names {
		_ = w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(p.data[n])), Typeflag: tar.TypeReg})
		_, _ = w.Write(p.data[n])
	}
	_ = w.Close()
	return b.Bytes()
}

func asJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func config(arch string, layers ...[]byte) ocispec.Image {
	c := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: arch},
		RootFS: ocispec.RootFS{Type: "layers"}}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest.FromBytes(l))
	}
	return c
}

// oci returns an OCI archive of one image.
func oci(name, arch, salt string) *archiveBuilder {
	p := &archiveBuilder{}
	layer := []byte("a layer with " + salt)
	l, c := p.blob(layer), p.blob(asJSON(config(arch, layer)))
	l.MediaType, c.MediaType = ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageConfig
	m := p.blob(asJSON(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: []ocispec.Descriptor{l}}))
	m.MediaType = ocispec.MediaTypeImageManifest
	if name != "" {
		m.Annotations = map[string]string{ociNameAnnotation: name}
	}
	p.put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	p.put("index.json", asJSON(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2},
		Manifests: []ocispec.Descriptor{m}}))
	return p
}

// docker returns the classic format of docker save: layers by directory and a configuration by its
// digest.
func docker(name, salt string) *archiveBuilder {
	p := &archiveBuilder{}
	layer := []byte("a layer with " + salt)
	p.put("abc/VERSION", []byte("1.0"))
	p.put("abc/json", []byte("{}"))
	p.put("abc/layer.tar", layer)
	c := asJSON(config(runtime.GOARCH, layer))
	p.put(digest.FromBytes(c).Encoded()+".json", c)
	p.put("manifest.json", asJSON([]dockerImage{{Config: digest.FromBytes(c).Encoded() + ".json",
		RepoTags: []string{name}, Layers: []string{"abc/layer.tar"}}}))
	return p
}

func zipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(data)
	_ = w.Close()
	return b.Bytes()
}

// fixture is a running Importer with its directory.
type fixture struct {
	t        *testing.T
	dir      string
	runtime  *fakeRuntime
	images   *Importer
	imported chan string // imported files
	failed   chan string // file and error
	stop     func()
	parent   string
	passing  error // a transient error of the runtime
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	parent := t.TempDir()
	w := &fixture{t: t, parent: parent, dir: filepath.Join(parent, "images"),
		runtime: &fakeRuntime{images: map[string]digest.Digest{}}, passing: errors.New("runtime unavailable")}
	w.start()
	return w
}

func (w *fixture) start() {
	w.imported, w.failed = make(chan string, 100), make(chan string, 100)
	w.images = New(Options{
		Dir: w.dir, Records: filepath.Join(w.parent, "records.json"), Runtime: w.runtime,
		Interval:    50 * time.Millisecond,
		Log:         slog.New(slog.DiscardHandler),
		OnImported:  func(file string, _ []Image) { w.imported <- filepath.Base(file) },
		OnFailed:    func(file string, err error) { w.failed <- filepath.Base(file) + ": " + err.Error() },
		IsTransient: func(err error) bool { return errors.Is(err, w.passing) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.images.Run(ctx) }()
	w.stop = sync.OnceFunc(func() { cancel(); <-ended })
	w.t.Cleanup(w.stop)
	w.until("the directory exists", func() bool { _, err := os.Stat(w.dir); return err == nil })
}

func (w *fixture) put(name string, data []byte) {
	w.t.Helper()
	tmp := filepath.Join(w.dir, "."+name)
	if err := errors.Join(os.WriteFile(tmp, data, 0o644), os.Rename(tmp, filepath.Join(w.dir, name))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("timeout: %s, files %+v, images %v", what, w.images.Files(), w.runtime.names())
		}
	}
}

func (w *fixture) next(c chan string) string {
	w.t.Helper()
	select {
	case s := <-c:
		return s
	case <-time.After(time.Minute):
		w.t.Fatalf("no event, files %+v", w.images.Files())
		return ""
	}
}

func (w *fixture) state(name string) State {
	for _, f := range w.images.Files() {
		if filepath.Base(f.Path) == name {
			return f.State
		}
	}
	return ""
}

func TestImportArchiveFormats(t *testing.T) {
	w := newFixture(t)
	for name, data := range map[string][]byte{
		"oci.tar":       oci("docker.io/library/one:1", runtime.GOARCH, "1").tar(),
		"ocizipped.tgz": zipped(oci("two:2", runtime.GOARCH, "2").tar()),
		"saved.tar":     docker("three:3", "3").tar(),
		"saved.tar.gz":  zipped(docker("reg.example:5000/four:4", "4").tar()),
	} {
		w.put(name, data)
	}
	want := []string{"docker.io/library/one:1", "docker.io/library/three:3", "docker.io/library/two:2",
		"reg.example:5000/four:4"}
	w.until("all are imported", func() bool { return slices.Equal(w.runtime.names(), want) })
	for range want {
		w.next(w.imported)
	}
	if pins := w.images.Pinned(); len(pins) != 4 {
		t.Errorf("pinned: %v", pins)
	}
	if w.runtime.maxOpen > 2 {
		t.Errorf("%d archives were read concurrently", w.runtime.maxOpen)
	}
}

func TestInvalidArchiveIsReported(t *testing.T) {
	whole := oci("docker.io/library/a:1", runtime.GOARCH, "x")
	cut := whole.tar()
	damaged := oci("docker.io/library/a:1", runtime.GOARCH, "y")
	for n := range damaged.data {
		if bytes.HasPrefix(damaged.data[n], []byte("a layer")) {
			damaged.data[n] = []byte("b layer with y")
		}
	}
	missing := oci("docker.io/library/a:1", runtime.GOARCH, "z")
	missing.names = slices.DeleteFunc(missing.names, func(n string) bool {
		return bytes.HasPrefix(missing.data[n],
			[]byte("a layer"))
	})
	for name, row := range map[string]struct {
		data []byte
		want string
	}{
		"cut.tar":      {cut[:520], "unexpected EOF"},
		"text.tar":     {[]byte(strings.Repeat("no archive ", 200)), "read tar"},
		"zstd.tar":     {append([]byte{0x28, 0xb5, 0x2f, 0xfd}, cut...), "not with gzip"},
		"gzipped.tgz":  {zipped(cut)[:200], "unexpected EOF"},
		"damaged.tar":  {damaged.tar(), "is damaged"},
		"missing.tar":  {missing.tar(), "is not in it"},
		"nameless.tar": {oci("", runtime.GOARCH, "x").tar(), "names no image"},
		"foreign.tar":  {oci("docker.io/library/a:1", "s390x", "x").tar(), "it is for linux/s390x"},
		"other.tar": {(&archiveBuilder{names: []string{"x"}, data: map[string][]byte{"x": []byte("x")}}).tar(),
			"neither an OCI archive nor from docker save"},
		"badname.tar": {oci("NOT/A:NAME:", runtime.GOARCH, "x").tar(), "image name"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.put(name, row.data)
			if got := w.next(w.failed); !strings.HasPrefix(got, name+": ") || !strings.Contains(got, row.want) {
				t.Errorf("reported %q, want %q", got, row.want)
			}
			w.put("good.tar", oci("docker.io/library/good:1", runtime.GOARCH, "g").tar())
			w.next(w.imported)
			// It is retried only after it changes.
			began := w.runtime.importCount()
			w.put(name, oci("docker.io/library/repaired:1", runtime.GOARCH, "m").tar())
			w.next(w.imported)
			if n := w.runtime.importCount(); n != began+1 {
				t.Errorf("%d imports after the file was repaired, %d before", n, began)
			}
			if got := w.runtime.names(); !slices.Equal(got,
				[]string{"docker.io/library/good:1", "docker.io/library/repaired:1"}) {
				t.Errorf("images: %v", got)
			}
			if len(w.failed) > 0 {
				t.Errorf("reported again: %s", <-w.failed)
			}
			w.stop()
			if w.runtime.open != 0 {
				t.Errorf("%d imports were not closed", w.runtime.open)
			}
		})
	}
}

func TestArchiveBeingWrittenIsNotRead(t *testing.T) {
	w := newFixture(t)
	w.put("first.tar", oci("docker.io/library/first:1", runtime.GOARCH, "1").tar())
	w.next(w.imported) // the watch is active
	data := oci("docker.io/library/slow:1", runtime.GOARCH, strings.Repeat("s", 10000)).tar()
	f, err := os.Create(filepath.Join(w.dir, "slow.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data[:5000]); err != nil {
		t.Fatal(err)
	}
	began := w.runtime.importCount()
	for n := range 3 { // other archives are imported meanwhile
		w.put("other.tar", oci("docker.io/library/other:1", runtime.GOARCH, strings.Repeat("o", n+1)).tar())
		w.next(w.imported)
	}
	if n := w.runtime.importCount(); n != began+3 || len(w.failed) > 0 {
		t.Fatalf("%d imports started, want 3: the incomplete file was read", n-began)
	}
	if _, err := f.Write(data[5000:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := w.next(w.imported); got != "slow.tar" {
		t.Errorf("imported %s", got)
	}
}

func TestImportedArchiveIsNotImportedAgain(t *testing.T) {
	w := newFixture(t)
	data := docker("docker.io/library/a:1", "a").tar()
	w.put("a.tar", data)
	w.next(w.imported)
	w.put("copy.tar", data) // the same content with another name
	w.until("the copy is imported", func() bool { return w.state("copy.tar") == StateImported })
	// changed modification time
	if err := os.Chtimes(filepath.Join(w.dir, "a.tar"), time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start() // restart
	w.until("both are imported", func() bool {
		return w.state("copy.tar") == StateImported &&
			w.state("a.tar") == StateImported
	})
	if n := w.runtime.importCount(); n != 1 {
		t.Errorf("imported %d times", n)
	}
	if pins := w.images.Pinned(); len(pins) != 1 {
		t.Errorf("pinned: %v", pins)
	}
	// The image is removed: it is imported again in spite of the records.
	w.runtime.mu.Lock()
	clear(w.runtime.images)
	w.runtime.mu.Unlock()
	w.next(w.imported)
	w.until("it is imported again", func() bool { return len(w.runtime.names()) == 1 })
	// The files are removed: the image is not pinned any more.
	if err := errors.Join(os.Remove(filepath.Join(w.dir, "a.tar")),
		os.Remove(filepath.Join(w.dir, "copy.tar"))); err != nil {
		t.Fatal(err)
	}
	w.until("nothing is pinned", func() bool { return len(w.images.Pinned()) == 0 })
	if len(w.runtime.names()) != 1 {
		t.Error("the image was removed with its file")
	}
}

func TestUnavailableRuntimeAndDamagedRecords(t *testing.T) {
	w := newFixture(t)
	w.runtime.mu.Lock()
	w.runtime.importErr = w.passing
	w.runtime.mu.Unlock()
	w.put("a.tar", oci("docker.io/library/a:1", runtime.GOARCH, "a").tar())
	w.until("it waits", func() bool {
		for _, f := range w.images.Files() {
			return f.State == StateWaiting && f.Message == "runtime unavailable"
		}
		return false
	})
	w.runtime.mu.Lock()
	w.runtime.importErr = nil
	w.runtime.mu.Unlock()
	w.next(w.imported)
	if len(w.failed) > 0 {
		t.Errorf("transient error was reported: %s", <-w.failed)
	}
	w.stop()
	if err := os.WriteFile(filepath.Join(w.parent, "records.json"), []byte(`{"version": 1, "fil`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.until("it is imported", func() bool { return w.state("a.tar") == StateImported })
}

// TestTransientErrorsAreRetried: the archive is read again although it did not
// change, and the error is reported once.
func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	disk := &fs.PathError{Op: "read", Path: "a.tar", Err: syscall.EIO}
	for what, row := range map[string]struct{ importErr, blobErr error }{
		"too many open files":     {importErr: &fs.PathError{Op: "open", Path: "a.tar", Err: syscall.EMFILE}},
		"I/O error in the tar":    {blobErr: archiveErrorf("read tar: %w", disk)},
		"file server unavailable": {blobErr: archiveErrorf("read blobs/sha256/x: %w", syscall.ESTALE)},
		"error of the runtime":    {blobErr: errors.New("injected")},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.runtime.mu.Lock()
			w.runtime.importErr, w.runtime.blobErr = row.importErr, row.blobErr
			w.runtime.mu.Unlock()
			w.put("a.tar", oci("docker.io/library/a:1", runtime.GOARCH, "a").tar())
			why := cmp.Or(row.importErr, row.blobErr).Error()
			if got, want := w.next(w.failed), "a.tar: "+why+"; the import is retried"; got != want {
				t.Errorf("reported %q, want %q", got, want)
			}
			w.until("it waits", func() bool {
				for _, f := range w.images.Files() {
					return f.State == StateWaiting && f.Message == why
				}
				return false
			})
			w.runtime.mu.Lock()
			w.runtime.importErr, w.runtime.blobErr = nil, nil
			w.runtime.mu.Unlock()
			w.next(w.imported)
			if w.until("it is imported", func() bool { return w.state("a.tar") == StateImported }); len(w.failed) > 0 {
				t.Errorf("reported again: %s", <-w.failed)
			}
		})
	}
	for fails, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		if got := retryDelay(fails); got != want {
			t.Errorf("after %d failures the delay is %v, want %v", fails, got, want)
		}
	}
	if retryDelay(7) != maxRetryInterval || retryDelay(1000) != maxRetryInterval {
		t.Errorf("delays %v and %v", retryDelay(7), retryDelay(1000))
	}
}

func TestShutdownClosesImports(t *testing.T) {
	w := newFixture(t)
	w.runtime.mu.Lock()
	w.runtime.hold = make(chan struct{})
	w.runtime.mu.Unlock()
	for _, n := range []string{"a", "b", "c"} {
		w.put(n+".tar", oci("docker.io/library/"+n+":1", runtime.GOARCH, n).tar())
	}
	w.until("two are being read",
		func() bool { w.runtime.mu.Lock(); defer w.runtime.mu.Unlock(); return w.runtime.open == 2 })
	w.stop()
	if w.runtime.open != 0 {
		t.Errorf("%d imports are open", w.runtime.open)
	}
}
