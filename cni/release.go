package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
)

const releaseBound = 30 * time.Second // for the plugins to take one attachment away

// Release takes a leak away: by the plugins' own DEL, with the configuration and
// result that libcni remembers if it does, and then by removing precisely what
// the plugins did not find: addresses that are still held for that container,
// rules whose comment names it, what libcni remembers of it, its pin. It may be
// repeated.
func (n *Network) Release(ctx context.Context, l Leak) error {
	switch l.Kind {
	case PinnedNetNS:
		return unpin(l.NetNS)
	case Chain:
		return dropChain(ctx, l.restoreProgram, l.Chain)
	case Attachment, Address, Rules:
	}
	ctx, cancel := context.WithTimeout(ctx, releaseBound)
	defer cancel()
	failed := n.detach(ctx, l)
	var errs []error
	for _, file := range l.Addresses {
		if h, ok := readHeld(file); ok && h.id == l.ID {
			errs = append(errs, removeFile(file))
		}
	}
	errs = append(errs, dropRules(ctx, l.network, l.ID))
	files := l.loopbackFiles
	if l.cached != nil {
		files = append(files, l.cached.file)
	}
	for _, file := range files {
		errs = append(errs, removeFile(file))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release the network of %.12s: %w", l.ID, errors.Join(failed, err))
	}
	if pinned(l.NetNS) {
		return unpin(l.NetNS)
	}
	return nil
}

// detach runs the plugins' DEL. That they fail is no error of Release when what
// they should have taken away can be removed without them.
func (n *Network) detach(ctx context.Context, l Leak) error {
	if l.Kind == Rules || l.Kind == Attachment && l.cached == nil {
		return nil // the plugins have nothing but rules to take away, or the loopback alone is left
	}
	list, args, err := n.configuration(l)
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: l.ID, IfName: l.ifName, Args: args, CacheDir: n.cache()}
	if _, ok := namespaceAt(l.NetNS); ok {
		rt.NetNS = l.NetNS
	}
	if l.cached != nil {
		rt.CapabilityArgs = l.cached.CapabilityArgs
	}
	return libcni.NewCNIConfigWithCacheDir(n.opts.BinDirs, n.cache(), nil).DelNetworkList(ctx, list, rt)
}

// configuration is that of the attachment when it was made, or of the network now.
func (n *Network) configuration(l Leak) (*libcni.NetworkConfigList, [][2]string, error) {
	if l.cached != nil && len(l.cached.Config) > 0 {
		if list, err := listFrom(l.cached.Config); err == nil {
			return list, l.cached.CNIArgs, nil
		}
	}
	file, err := first(n.opts.ConfDir)
	if err != nil {
		return nil, nil, err
	}
	text, err := read(file)
	if err != nil {
		return nil, nil, err
	}
	list, err := listFrom(text)
	return list, [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_INFRA_CONTAINER_ID", l.ID}}, err
}

func listFrom(text []byte) (*libcni.NetworkConfigList, error) {
	if list, err := libcni.ConfListFromBytes(text); err == nil && len(list.Plugins) > 0 {
		return list, nil
	}
	conf, err := libcni.ConfFromBytes(text) //nolint:staticcheck // runtimes still take such files
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // as above
}

func removeFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// pinned reports whether a path is that of a namespace which containerd keeps by
// a mount, and not one that a process or a person has made.
func pinned(path string) bool {
	return strings.HasPrefix(filepath.Base(path), pinPrefix) && strings.HasSuffix(filepath.Dir(path), "netns")
}
