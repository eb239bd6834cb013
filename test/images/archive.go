package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Archive is one image in a file.
type Archive struct {
	Ref  string // full name with tag, as containerd stores it: docker.io/library/busybox:1.36
	Path string // an OCI layout in a tar file
}

// Annotations that contain the image name in an OCI layout. containerd reads the first, other tools the
// second.
const (
	containerdName = "io.containerd.image.name"
	ociName        = "org.opencontainers.image.ref.name"
)

// build creates an OCI image for the architecture of this machine from layers.
func build(config v1.Config, layers ...tree) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		Created:      v1.Time{Time: time.Unix(0, 0).UTC()},
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Config:       config,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, t := range layers {
		l, err := t.layer()
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// Write atomically writes an image with a name as an OCI layout in a tar file.
func Write(file, ref string, img v1.Image) error { return write(file, ref, img) }

// write atomically writes an image as an OCI layout in a tar file.
func write(file, ref string, img v1.Image) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	err = pack(tmp, ref, img)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(tmp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write image archive %s: %w", file, err)
	}
	return nil
}

func pack(to io.Writer, ref string, img v1.Image) error {
	w := tar.NewWriter(to)
	put := func(name string, data []byte) error {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0).UTC(),
			Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	index, err := indexOf(ref, img)
	if err != nil {
		return err
	}
	blobs, err := blobsOf(img)
	if err != nil {
		return err
	}
	if err := put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := put("index.json", index); err != nil {
		return err
	}
	for _, b := range blobs {
		if err := put("blobs/sha256/"+b.hash.Hex, b.data); err != nil {
			return err
		}
	}
	return w.Close()
}

func indexOf(ref string, img v1.Image) ([]byte, error) {
	d, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	d.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	d.Annotations = map[string]string{containerdName: ref, ociName: ref}
	return json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{*d}})
}

type blob struct {
	hash v1.Hash
	data []byte
}

// blobsOf returns manifest, config and layers of an image.
func blobsOf(img v1.Image) ([]blob, error) {
	var bs []blob
	for _, raw := range []func() ([]byte, error){img.RawManifest, img.RawConfigFile} {
		data, err := raw()
		if err != nil {
			return nil, err
		}
		h, _, err := v1.SHA256(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		bs = append(bs, blob{h, data})
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		h, err := l.Digest()
		if err != nil {
			return nil, err
		}
		r, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return nil, err
		}
		bs = append(bs, blob{h, data})
	}
	return bs, nil
}

// Load reads the image from an archive of this package.
func Load(path string) (v1.Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read image archive %s: %w", path, err)
		}
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, fmt.Errorf("read image archive %s: %w", path, err)
		}
		files[h.Name] = data
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		return nil, fmt.Errorf("read index of image archive %s: %w", path, err)
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("image archive %s contains %d images, want one", path, len(index.Manifests))
	}
	img, err := partial.CompressedToImage(&loadedImage{files: files, top: index.Manifests[0]})
	if err != nil {
		return nil, fmt.Errorf("read image archive %s: %w", path, err)
	}
	return img, nil
}

// loadedImage is an image in memory, backed by the files of its OCI layout.
type loadedImage struct {
	files map[string][]byte
	top   v1.Descriptor
}

func (a *loadedImage) blob(h v1.Hash) ([]byte, error) {
	data, ok := a.files["blobs/"+strings.Replace(h.String(), ":", "/", 1)]
	if !ok {
		return nil, fmt.Errorf("no blob %s in the archive", h)
	}
	return data, nil
}

func (a *loadedImage) MediaType() (types.MediaType, error) { return a.top.MediaType, nil }
func (a *loadedImage) RawManifest() ([]byte, error)        { return a.blob(a.top.Digest) }

func (a *loadedImage) RawConfigFile() ([]byte, error) {
	m, err := a.manifest()
	if err != nil {
		return nil, err
	}
	return a.blob(m.Config.Digest)
}

func (a *loadedImage) manifest() (*v1.Manifest, error) {
	raw, err := a.RawManifest()
	if err != nil {
		return nil, err
	}
	return v1.ParseManifest(bytes.NewReader(raw))
}

func (a *loadedImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	data, err := a.blob(h)
	if err != nil {
		return nil, err
	}
	return loadedLayer{h, data}, nil
}

type loadedLayer struct {
	hash v1.Hash
	data []byte
}

func (l loadedLayer) Digest() (v1.Hash, error)            { return l.hash, nil }
func (l loadedLayer) Size() (int64, error)                { return int64(len(l.data)), nil }
func (l loadedLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l loadedLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}

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
