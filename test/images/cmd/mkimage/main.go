// Command mkimage builds the images of berth's tests and demo. It prints one line per image with the
// archive and the image name.
//
//	mkimage [-dir DIR] [NAME…]
//
// With -serve it then serves them from a registry on a loopback address until it is stopped. With -certs it
// configures containerd to pull the images from there:
//
//	mkimage -serve 127.0.0.1:5000 -certs /etc/containerd/certs.d
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"berth/test/images"
)

func main() {
	dir := flag.String("dir", "", "cache `directory` (default .cache/images next to go.mod)")
	addr := flag.String("serve", "", "loopback `address` of a registry to run")
	certs := flag.String("certs", "", "config_path of containerd's registries, for hosts.toml files")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	archives, err := list(ctx, *dir, flag.Args())
	if err == nil && *addr != "" {
		err = serve(ctx, *addr, *certs, archives)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

// list builds the images and prints those with the given names, or all without names.
func list(ctx context.Context, dir string, names []string) ([]images.Archive, error) {
	if dir == "" {
		var err error
		if dir, err = images.CacheDir(); err != nil {
			return nil, err
		}
	}
	all, err := images.All(ctx, dir)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		all = slices.DeleteFunc(all, func(a images.Archive) bool { return !slices.Contains(names, a.Ref) })
	}
	for _, a := range all {
		fmt.Println(a.Path, a.Ref)
	}
	return all, nil
}

func serve(ctx context.Context, addr, certs string, archives []images.Archive) (err error) {
	r, err := images.NewRegistry(images.RegistryOptions{Addr: addr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, a := range archives {
		if err := r.Push(ctx, a); err != nil {
			return err
		}
		host, _, _ := strings.Cut(a.Ref, "/")
		if certs == "" {
			continue
		}
		if err := r.HostsToml(certs, host); err != nil {
			return err
		}
	}
	fmt.Println("serving on", r.Addr)
	<-ctx.Done()
	return nil
}
