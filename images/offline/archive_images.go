package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/podspec"
)

// Docker media types in addition to those of OCI.
const (
	mediaTypeDockerList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Annotations with the full name of an image. The first existing one is used.
const (
	containerdNameAnnotation = "io.containerd.image.name"
	ociNameAnnotation        = ocispec.AnnotationRefName
)

// named is an image of an archive with one of its names.
type named struct {
	name   string // in full form
	id     digest.Digest
	target ocispec.Descriptor
}

// images creates the images of an archive: it links the content with garbage collection labels and
// unpacks it. The caller creates the image names.
func (a *archive) images(ctx context.Context, to Import) ([]named, error) {
	var out []named
	if b, ok := a.files["index.json"]; ok {
		var index ocispec.Index
		if err := json.Unmarshal(b.text, &index); err != nil {
			return nil, archiveErrorf("index.json: %w", err)
		}
		for _, d := range index.Manifests {
			names, err := namesOf(d)
			if err != nil {
				return nil, err
			}
			if len(names) == 0 {
				continue
			}
			id, err := a.link(ctx, d, to)
			if err != nil {
				return nil, err
			}
			for _, n := range names {
				out = append(out, named{name: n, id: id, target: d})
			}
		}
	}
	if b, ok := a.files["manifest.json"]; ok && len(out) == 0 {
		var err error
		if out, err = a.dockerImages(ctx, b.text, to); err != nil {
			return nil, err
		}
	} else if _, oci := a.files["index.json"]; !ok && !oci {
		return nil, archiveErrorf(
			"it is neither an OCI archive nor from docker save: it has no index.json and no manifest.json")
	}
	if len(out) == 0 {
		return nil, archiveErrorf("it names no image: an image needs a name with a tag, as in docker save NAME:TAG")
	}
	return out, nil
}

// namesOf returns the full names of an entry of index.json. A bare tag is not a name.
func namesOf(d ocispec.Descriptor) ([]string, error) {
	for _, key := range [...]string{containerdNameAnnotation, ociNameAnnotation} {
		name := d.Annotations[key]
		if name == "" || !strings.ContainsAny(name, ":/") {
			continue
		}
		full, err := fullName(name)
		return []string{full}, err
	}
	return nil, nil
}

func fullName(name string) (string, error) {
	n, err := podspec.ParseImageName(name)
	if err != nil {
		return "", archiveErrorf("image name %q: %w", name, err)
	}
	return n.String(), nil
}

// link links an index or a manifest to its content, as far as this platform needs it, and returns
// the image ID.
func (a *archive) link(ctx context.Context, d ocispec.Descriptor, to Import) (digest.Digest, error) {
	b, ok := a.byDigest[d.Digest]
	if !ok || b.text == nil {
		return "", archiveErrorf("%s is not in it", d.Digest)
	}
	if d.MediaType != ocispec.MediaTypeImageIndex && d.MediaType != mediaTypeDockerList {
		return a.manifest(ctx, d.Digest, b.text, to)
	}
	var index ocispec.Index
	if err := json.Unmarshal(b.text, &index); err != nil {
		return "", archiveErrorf("%s: %w", d.Digest, err)
	}
	var id digest.Digest
	labels := map[string]string{}
	var others []string
	for n, m := range index.Manifests {
		if p := m.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			others = append(others, p.OS+"/"+p.Architecture)
			continue
		}
		found, err := a.link(ctx, m, to)
		if err != nil {
			return "", err
		}
		labels[fmt.Sprintf("containerd.io/gc.ref.content.m.%d", n)] = string(m.Digest)
		if id == "" {
			id = found
		}
	}
	if id == "" {
		return "", archiveErrorf("it has nothing for linux/%s, only for %s", runtime.GOARCH, strings.Join(others, ", "))
	}
	return id, to.SetReferences(ctx, d.Digest, labels)
}

func (a *archive) manifest(ctx context.Context, at digest.Digest, text []byte, to Import) (digest.Digest, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return "", archiveErrorf("%s: %w", at, err)
	}
	config, ok := a.byDigest[m.Config.Digest]
	if !ok || config.text == nil {
		return "", archiveErrorf("configuration %q of an image is not in it", m.Config.Digest)
	}
	labels := map[string]string{"containerd.io/gc.ref.content.config": string(m.Config.Digest)}
	for n, l := range m.Layers {
		if have, ok := a.byDigest[l.Digest]; !ok || have.size != l.Size {
			return "", archiveErrorf("layer %s is not in it", l.Digest)
		}
		labels[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", n)] = string(l.Digest)
	}
	diffs, err := diffIDs(config.text)
	if err != nil {
		return "", err
	}
	if len(diffs) != len(m.Layers) {
		return "", archiveErrorf("an image has %d layers, its configuration has %d", len(m.Layers), len(diffs))
	}
	if err := to.SetReferences(ctx, at, labels); err != nil {
		return "", err
	}
	return m.Config.Digest, to.Unpack(ctx, m.Config.Digest, m.Layers, diffs)
}

// diffIDs returns the digests of the unpacked layers from an image configuration.
func diffIDs(text []byte) ([]digest.Digest, error) {
	var c ocispec.Image
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, archiveErrorf("configuration of an image: %w", err)
	}
	if c.OS != "linux" || c.Architecture != runtime.GOARCH {
		return nil, archiveErrorf("it is for %s/%s, this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	for _, d := range c.RootFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return nil, archiveErrorf("configuration of an image: layer %q: %w", d, err)
		}
	}
	return c.RootFS.DiffIDs, nil
}

// dockerImage is an entry of manifest.json of docker save.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerImages creates images from the output of docker save. It contains no registry manifests, so
// they are created.
func (a *archive) dockerImages(ctx context.Context, text []byte, to Import) (out []named, err error) {
	var list []dockerImage
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, archiveErrorf("manifest.json: %w", err)
	}
	for _, s := range list {
		if len(s.RepoTags) == 0 {
			continue
		}
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		config, ok := a.resolve(s.Config)
		if !ok {
			return nil, archiveErrorf("configuration %s of image %s is not in it", s.Config, s.RepoTags[0])
		}
		m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: config.digest, Size: config.size}
		for _, name := range s.Layers {
			l, ok := a.resolve(name)
			if !ok {
				return nil, archiveErrorf("layer %s of image %s is not in it", name, s.RepoTags[0])
			}
			kind := ocispec.MediaTypeImageLayer
			if l.gzip {
				kind = ocispec.MediaTypeImageLayerGzip
			}
			m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: kind, Digest: l.digest, Size: l.size})
		}
		d, err := a.addManifest(ctx, m, to)
		if err != nil {
			return nil, err
		}
		id, err := a.link(ctx, d, to)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Compact(slices.Sorted(slices.Values(s.RepoTags))) {
			full, err := fullName(name)
			if err != nil {
				return nil, err
			}
			out = append(out, named{name: full, id: id, target: d})
		}
	}
	return out, nil
}

// addManifest writes a created manifest to the content store.
func (a *archive) addManifest(ctx context.Context, m ocispec.Manifest, to Import) (ocispec.Descriptor, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	b := blob{digest: digest.FromBytes(text), size: int64(len(text)), text: text}
	a.byDigest[b.digest] = b
	err = to.WriteBlob(ctx, "manifest "+string(b.digest), bytes.NewReader(text), b.digest, b.size)
	return ocispec.Descriptor{MediaType: m.MediaType, Digest: b.digest, Size: b.size}, err
}
