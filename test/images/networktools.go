package images

import (
	"context"
	"maps"
	"os"
)

// networkTools returns Debian's programs that tests of networks run: dig, nslookup and host, nc, wget, ss, getent and
// hostname. They replace applets of busybox with fewer options. The applet wget of Debian's static busybox crashes
// when it has a timeout.
func networkTools(ctx context.Context) (tree, error) {
	work, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	root, err := unpackDebian(ctx, work, "bind9-dnsutils", "bind9-host", "bind9-libs", "libxml2", "libicu72",
		"libbsd0", "libmd0", "netcat-openbsd", "wget")
	if err != nil {
		return nil, err
	}
	t := tree{}
	for _, name := range []string{"/usr/bin/dig", "/usr/bin/nslookup", "/usr/bin/host", "/bin/nc.openbsd",
		"/usr/bin/wget", "/usr/bin/ss", "/usr/bin/getent", "/bin/hostname"} {
		if err := t.program(name, root, "/"); err != nil {
			return nil, err
		}
	}
	t.symlink("/bin/nc", "nc.openbsd")
	for _, name := range []string{"nslookup", "wget"} {
		t.symlink("/bin/"+name, "/usr/bin/"+name)
	}
	return t, nil
}

// addAll adds the entries of another tree and replaces those of the same name.
func (t tree) addAll(other func() (tree, error)) error {
	all, err := other()
	maps.Copy(t, all)
	return err
}
