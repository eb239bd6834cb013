package main

import (
	"context"
	"errors"

	"berth/cri"
	"berth/internal/userids"
	"berth/node"
)

// checkFeatures looks at what some pods ask for and a node can do without.
func (c checks) checkFeatures(ctx context.Context, add addItem) {
	shared, err := node.RootMountShared()
	if err == nil && !shared {
		err = errors.New("the root file system is a private mount: a volume mount with mountPropagation Bidirectional is refused by the runtime, unless its path lies on a shared mount")
	}
	add("mount propagation", false, err, "the root file system is shared", "mount --make-rshared / before the runtime and berth are started; systemd does that by itself")
	armor := "enabled"
	if !node.AppArmorEnabled() {
		armor = "not enabled on this host: pods with an appArmorProfile are refused"
	}
	add("apparmor", false, nil, armor, "")
	_, err = userids.New(userids.Options{RootDir: c.config.RootDir, MaxPods: maxPods(c.config.Pods)})
	detail := "pods with hostUsers: false have users of their own"
	if st, asked := c.client.Status(ctx); asked == nil && !ownUsers(st) {
		detail = "the runtime cannot: pods with hostUsers: false are refused"
	}
	add("user namespaces", false, err, detail, "give the user kubelet one range in /etc/subuid and the same in /etc/subgid, or none")
}

// ownUsers reports whether a handler of the runtime knows user namespaces.
func ownUsers(st cri.Status) bool {
	for _, f := range st.Handlers {
		if f.UserNamespaces {
			return true
		}
	}
	return false
}
