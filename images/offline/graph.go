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

// Media types of Docker's, beside those of OCI.
const (
	dockerList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Annotations that carry an image's full name, the first that is there.
const (
	containerdName = "io.containerd.image.name"
	ociName        = ocispec.AnnotationRefName
)

// named is an image of an archive under one of its names.
type named struct {
	name   string // in full
	id     digest.Digest
	target ocispec.Descriptor
}

// images makes images of what an archive has brought: what belongs together is
// tied together and unpacked. The names are the caller's to give.
func (a *archive) images(ctx context.Context, to Import) ([]named, error) {
	var out []named
	if b, ok := a.files["index.json"]; ok {
		var index ocispec.Index
		if err := json.Unmarshal(b.text, &index); err != nil {
			return nil, broken("index.json: %w", err)
		}
		for _, d := range index.Manifests {
			names, err := namesOf(d)
			if err != nil {
				return nil, err
			}
			if len(names) == 0 {
				continue
			}
			id, err := a.tie(ctx, d, to)
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
		if out, err = a.saved(ctx, b.text, to); err != nil {
			return nil, err
		}
	} else if _, oci := a.files["index.json"]; !ok && !oci {
		return nil, broken("it is neither an OCI archive nor of docker save: it has no index.json and no manifest.json")
	}
	if len(out) == 0 {
		return nil, broken("it names no image: an image needs a name with a tag, as in docker save NAME:TAG")
	}
	return out, nil
}

// namesOf are the full names that an entry of index.json has; a bare tag is none.
func namesOf(d ocispec.Descriptor) ([]string, error) {
	for _, key := range [...]string{containerdName, ociName} {
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
		return "", broken("image name %q: %w", name, err)
	}
	return n.String(), nil
}

// tie ties an index or a manifest to what it consists of, as far as this machine
// can run it, and returns the image's ID.
func (a *archive) tie(ctx context.Context, d ocispec.Descriptor, to Import) (digest.Digest, error) {
	b, ok := a.byDigest[d.Digest]
	if !ok || b.text == nil {
		return "", broken("%s is not in it", d.Digest)
	}
	if d.MediaType != ocispec.MediaTypeImageIndex && d.MediaType != dockerList {
		return a.manifest(ctx, d.Digest, b.text, to)
	}
	var index ocispec.Index
	if err := json.Unmarshal(b.text, &index); err != nil {
		return "", broken("%s: %w", d.Digest, err)
	}
	var id digest.Digest
	labels := map[string]string{}
	var others []string
	for n, m := range index.Manifests {
		if p := m.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			others = append(others, p.OS+"/"+p.Architecture)
			continue
		}
		found, err := a.tie(ctx, m, to)
		if err != nil {
			return "", err
		}
		labels[fmt.Sprintf("containerd.io/gc.ref.content.m.%d", n)] = string(m.Digest)
		if id == "" {
			id = found
		}
	}
	if id == "" {
		return "", broken("it has nothing for linux/%s, only for %s", runtime.GOARCH, strings.Join(others, ", "))
	}
	return id, to.SetReferences(ctx, d.Digest, labels)
}

func (a *archive) manifest(ctx context.Context, at digest.Digest, text []byte, to Import) (digest.Digest, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return "", broken("%s: %w", at, err)
	}
	config, ok := a.byDigest[m.Config.Digest]
	if !ok || config.text == nil {
		return "", broken("configuration %q of an image is not in it", m.Config.Digest)
	}
	labels := map[string]string{"containerd.io/gc.ref.content.config": string(m.Config.Digest)}
	for n, l := range m.Layers {
		if have, ok := a.byDigest[l.Digest]; !ok || have.size != l.Size {
			return "", broken("layer %s is not in it", l.Digest)
		}
		labels[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", n)] = string(l.Digest)
	}
	diffs, err := diffsOf(config.text)
	if err != nil {
		return "", err
	}
	if len(diffs) != len(m.Layers) {
		return "", broken("an image has %d layers, its configuration has %d", len(m.Layers), len(diffs))
	}
	if err := to.SetReferences(ctx, at, labels); err != nil {
		return "", err
	}
	return m.Config.Digest, to.Unpack(ctx, m.Config.Digest, m.Layers, diffs)
}

// diffsOf reads an image's configuration: what its layers are when unpacked.
func diffsOf(text []byte) ([]digest.Digest, error) {
	var c ocispec.Image
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, broken("configuration of an image: %w", err)
	}
	if c.OS != "linux" || c.Architecture != runtime.GOARCH {
		return nil, broken("it is for %s/%s, this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	for _, d := range c.RootFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return nil, broken("configuration of an image: layer %q: %w", d, err)
		}
	}
	return c.RootFS.DiffIDs, nil
}

// savedImage is an entry of docker save's manifest.json.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// saved makes images of what docker save has written: it has no manifests in a
// registry's sense, so they are made.
func (a *archive) saved(ctx context.Context, text []byte, to Import) (out []named, err error) {
	var list []savedImage
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, broken("manifest.json: %w", err)
	}
	for _, s := range list {
		if len(s.RepoTags) == 0 {
			continue
		}
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		config, ok := a.at(s.Config)
		if !ok {
			return nil, broken("configuration %s of image %s is not in it", s.Config, s.RepoTags[0])
		}
		m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: config.digest, Size: config.size}
		for _, name := range s.Layers {
			l, ok := a.at(name)
			if !ok {
				return nil, broken("layer %s of image %s is not in it", name, s.RepoTags[0])
			}
			kind := ocispec.MediaTypeImageLayer
			if l.gzip {
				kind = ocispec.MediaTypeImageLayerGzip
			}
			m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: kind, Digest: l.digest, Size: l.size})
		}
		d, err := a.add(ctx, m, to)
		if err != nil {
			return nil, err
		}
		id, err := a.tie(ctx, d, to)
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

// add puts a manifest that was made here into the store.
func (a *archive) add(ctx context.Context, m ocispec.Manifest, to Import) (ocispec.Descriptor, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	b := blob{digest: digest.FromBytes(text), size: int64(len(text)), text: text}
	a.byDigest[b.digest] = b
	err = to.WriteBlob(ctx, "manifest "+string(b.digest), bytes.NewReader(text), b.digest, b.size)
	return ocispec.Descriptor{MediaType: m.MediaType, Digest: b.digest, Size: b.size}, err
}
