package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// StandIns builds replacements of images that the Kubernetes conformance tests use from local files. It
// returns those of refs that have a replacement, by name. programs is a directory with the tests' own
// programs agnhost and nonewprivs, and agnhost's certificate localhost.crt with its key localhost.key.
func StandIns(ctx context.Context, programs string, refs []string) (map[string]v1.Image, error) {
	all := map[string]v1.Image{}
	tools := sync.OnceValues(func() (tree, error) { return networkTools(ctx) })
	for _, ref := range refs {
		name, _, _ := strings.Cut(path.Base(ref), ":")
		if !strings.HasPrefix(ref, "registry.k8s.io/") && !strings.HasPrefix(ref, "docker.io/library/") {
			continue
		}
		img, err := standIn(ctx, name, ref, programs, tools)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", ref, err)
		case img != nil:
			all[ref] = img
		}
	}
	return all, nil
}

// standIn returns nil if the name has no replacement.
func standIn(ctx context.Context, name, ref, programs string, tools func() (tree, error)) (v1.Image, error) {
	base := tree{}
	err := base.bash(ctx)
	base.text("/etc/os-release", "NAME=\"Alpine Linux\"\n") // a test reads it
	// A user whose group is defined in the image.
	base.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"+
		"user-defined-in-image:x:1000:1000::/:/bin/sh\n")
	base.text("/etc/group", "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n"+
		"group-defined-in-image:x:50000:user-defined-in-image\n")
	config := v1.Config{Env: []string{searchPath}, WorkingDir: "/"}
	switch name {
	case "busybox":
		config.Cmd = []string{"sh"}
	case "agnhost", "kitten":
		err = errors.Join(err, base.copyFile("/agnhost", filepath.Join(programs, "agnhost")), base.curl(ctx),
			base.copyFile("/localhost.crt", filepath.Join(programs, "localhost.crt")),
			base.copyFile("/localhost.key", filepath.Join(programs, "localhost.key")))
		base.symlink("/agnhost-2", "agnhost")
		if name == "agnhost" {
			err = errors.Join(err, base.addAll(tools))
		}
		base.dir("/uploads", 0o755)
		base.text("/data.json", `{"image": "kitten.jpg"}`)
		config.Entrypoint, config.Cmd = []string{"/agnhost"}, []string{"pause"}
	case "glibc-dns-testing":
		err = errors.Join(err, base.addAll(tools))
		config.Cmd = []string{"bash"}
	case "nonewprivs":
		data, err2 := os.ReadFile(filepath.Join(programs, "nonewprivs"))
		err = errors.Join(err, err2)
		base.file("/usr/local/bin/nnp", fs.ModeSetuid|fs.ModeSetgid|0o755, data)
		config.Cmd = []string{"nnp"}
	case "nginx":
		return buildRecipe(ctx, nginx(ref))
	case "pause":
		return buildRecipe(ctx, pause())
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return build(config, base)
}

// buildRecipe builds the image of a recipe without the cache.
func buildRecipe(ctx context.Context, r recipe) (v1.Image, error) {
	work, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	return r.make(ctx, work)
}

// curl adds Debian's curl, which tests of lifecycle hooks run.
func (t tree) curl(ctx context.Context) error {
	work, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root, err := unpackDebian(ctx, work, "curl", "libcurl4")
	if err != nil {
		return err
	}
	return t.program("/usr/bin/curl", root, "/")
}
