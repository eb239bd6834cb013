package admission

import "testing"

func TestAppArmor(t *testing.T) {
	without := func(n *Node) { n.NoAppArmor = true }
	rejected := []Rejection{
		{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"},
	}
	const local, standard, none = "{type: Localhost, localhostProfile: p}", "{type: RuntimeDefault}",
		"{type: Unconfined}"
	pod := func(profile string) string { return "{securityContext: {appArmorProfile: " + profile + "}}" }
	in := func(kind, profile string) string {
		return kind + ": [{name: main, image: x, securityContext: {appArmorProfile: " + profile + "}}]"
	}
	check(t, []row{
		{sentence: "a pod without a profile needs no AppArmor", pod: podOf(t, "{}"), node: without},
		{sentence: "an unconfined pod needs no AppArmor", pod: podOf(t, pod(none)), node: without},
		{sentence: "an unconfined container needs no AppArmor", pod: podOf(t, in("containers", none)), node: without},
		{sentence: "a profile on a host with AppArmor", pod: podOf(t, pod(local))},
		{sentence: "a pod's profile needs AppArmor", pod: podOf(t, pod(local)), node: without, want: rejected},
		{
			sentence: "the runtime's default profile needs AppArmor",
			pod:      podOf(t, pod(standard)),
			node:     without,
			want:     rejected,
		},
		{
			sentence: "a container's profile needs AppArmor",
			pod:      podOf(t, in("containers", local)),
			node:     without,
			want:     rejected,
		},
		{
			sentence: "an init container's profile needs AppArmor",
			pod:      podOf(t, in("initContainers", local)),
			node:     without,
			want:     rejected,
		},
		{
			sentence: "an ephemeral container's profile needs AppArmor",
			pod:      podOf(t, in("ephemeralContainers", local)),
			node:     without,
			want:     rejected,
		},
	})
}
