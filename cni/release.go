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

const releaseTimeout = 30 * time.Second // for the plugins to delete one attachment

// Release deletes a leak. It first runs the plugins' DEL, with the configuration and result from
// libcni's cache if available. It then removes exactly what the plugins did not find: addresses
// still allocated for that container, rules whose comment names it, its cache entries and its
// pinned namespace. Release may be repeated.
func (n *Network) Release(ctx context.Context, l Leak) error {
	switch l.Kind {
	case PinnedNetNS:
		return removePin(l.NetNS)
	case Chain:
		return deleteChain(ctx, l.restoreProgram, l.Chain)
	case Attachment, Address, Rules:
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	failed := n.runDel(ctx, l)
	var errs []error
	for _, file := range l.Addresses {
		if h, ok := readAllocatedAddress(file); ok && h.id == l.ID {
			errs = append(errs, removeFile(file))
		}
	}
	errs = append(errs, deleteRules(ctx, l.network, l.ID))
	files := l.loopbackFiles
	if l.cached != nil {
		files = append(files, l.cached.file)
	}
	for _, file := range files {
		errs = append(errs, removeFile(file))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release network of container %.12s: %w", l.ID, errors.Join(failed, err))
	}
	if isPin(l.NetNS) {
		return removePin(l.NetNS)
	}
	return nil
}

// runDel runs the plugins' DEL. Release ignores its error if everything can be removed without the
// plugins.
func (n *Network) runDel(ctx context.Context, l Leak) error {
	if l.Kind == Rules || l.Kind == Attachment && l.cached == nil {
		return nil // only rules or the loopback attachment are left
	}
	list, args, err := n.delConfig(l)
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: l.ID, IfName: l.ifName, Args: args, CacheDir: n.cacheDir()}
	if _, ok := namespaceAt(l.NetNS); ok {
		rt.NetNS = l.NetNS
	}
	if l.cached != nil {
		rt.CapabilityArgs = l.cached.CapabilityArgs
	}
	return libcni.NewCNIConfigWithCacheDir(n.opts.BinDirs, n.cacheDir(), nil).DelNetworkList(ctx, list, rt)
}

// delConfig returns the configuration that the attachment was created with, or else the current one
// of the network.
func (n *Network) delConfig(l Leak) (*libcni.NetworkConfigList, [][2]string, error) {
	if l.cached != nil && len(l.cached.Config) > 0 {
		if list, err := parseConfList(l.cached.Config); err == nil {
			return list, l.cached.CNIArgs, nil
		}
	}
	file, err := firstConfFile(n.opts.ConfDir)
	if err != nil {
		return nil, nil, err
	}
	text, err := readConfFile(file)
	if err != nil {
		return nil, nil, err
	}
	list, err := parseConfList(text)
	return list, [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_INFRA_CONTAINER_ID", l.ID}}, err
}

func parseConfList(text []byte) (*libcni.NetworkConfigList, error) {
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

// isPin reports whether a path is that of a namespace that containerd has pinned, and not one that
// a process or a user has created.
func isPin(path string) bool {
	return strings.HasPrefix(filepath.Base(path), pinPrefix) && strings.HasSuffix(filepath.Dir(path), "netns")
}
