package check

import (
	"context"
	"errors"

	"berth/cri"
	"berth/internal/userids"
	"berth/node"
)

// checkFeatures checks optional features that some pods require.
func (c Node) checkFeatures(ctx context.Context, add AddFunc) {
	shared, err := node.RootMountShared()
	if err == nil && !shared {
		err = errors.New(
			"the root file system is a private mount: the runtime rejects volume mounts with mountPropagation " +
				"Bidirectional outside shared mounts",
		)
	}
	add(
		"mount propagation",
		false,
		err,
		"the root file system is a shared mount",
		"mount --make-rshared / before starting the runtime and berth (the default with systemd)",
	)
	armor := "enabled"
	if !node.AppArmorEnabled() {
		armor = "not enabled on this host: pods with an appArmorProfile are rejected"
	}
	add("apparmor", false, nil, armor, "")
	pods := c.Config.Pods
	_, err = userids.New(userids.Options{RootDir: c.Config.RootDir, MaxPods: node.MaxPods(pods.Max, pods.PerCore)})
	detail := "available for pods with hostUsers: false"
	if st, statusErr := c.Runtime.Status(ctx); statusErr == nil && !supportsUserNamespaces(st) {
		detail = "not supported by the runtime: pods with hostUsers: false are rejected"
	}
	add(
		"user namespaces",
		false,
		err,
		detail,
		"assign exactly one range to the user kubelet in both /etc/subuid and /etc/subgid, or none",
	)
}

// supportsUserNamespaces reports whether a handler of the runtime supports user namespaces.
func supportsUserNamespaces(st cri.Status) bool {
	for _, f := range st.Handlers {
		if f.UserNamespaces {
			return true
		}
	}
	return false
}
