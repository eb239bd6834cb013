package cri

import (
	"maps"
	"testing"

	"github.com/containerd/containerd/api/services/containers/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/cri/crifake"
)

func TestOwnerOfRuntimeObjects(t *testing.T) {
	t.Parallel()
	berth := func(more ...string) map[string]string {
		labels := map[string]string{criconfig.OwnerLabel: criconfig.OwnerVersion, labelPodUID: "u"}
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
		return labels
	}
	for name, c := range map[string]struct {
		labels  map[string]string
		owned   bool
		creator Creator
	}{
		"this instance":     {berth(criconfig.InstanceLabel, "a"), true, ""},
		"another instance":  {berth(criconfig.InstanceLabel, "b"), false, CreatorBerth},
		"older release":     {berth(labelPodUID, "old"), true, ""},
		"handed over":       {berth(criconfig.InstanceLabel, "a", labelPodUID, "unmarked"), false, CreatorKubelet},
		"another old berth": {berth(), false, CreatorBerth},
		"newer labels":      {berth(criconfig.OwnerLabel, "v2", criconfig.InstanceLabel, "a"), false, CreatorBerth},
		"kubelet":           {map[string]string{labelPodUID: "u"}, false, CreatorKubelet},
		"unknown program":   {map[string]string{"app": "x"}, false, CreatorUnknown},
		"no labels":         {nil, false, CreatorUnknown},
	} {
		client := &Client{instance: "a", ownsUnlabeled: func(uid types.UID) bool { return uid == "old" },
			unmarked: func(uid types.UID) bool { return uid == "unmarked" }}
		if got := client.owns(c.labels); got != c.owned {
			t.Errorf("%s: got owned %v", name, got)
		}
		if got := client.creatorOf(c.labels); !c.owned && got != c.creator {
			t.Errorf("%s: got creator %q, want %q", name, got, c.creator)
		}
		record := &containers.Container{Labels: map[string]string{"io.cri-containerd.kind": "sandbox"}}
		maps.Copy(record.Labels, c.labels)
		if got := client.isOwnRecord(record); got != c.owned {
			t.Errorf("%s: got own containerd record %v", name, got)
		}
	}
}

// TestInstancesShareRuntime has two berths and another client in one runtime. Each berth sees only its own
// objects, and reports those of the others with their creators.
func TestInstancesShareRuntime(t *testing.T) {
	t.Parallel()
	fake := crifake.New(crifake.Options{})
	t.Cleanup(fake.Close)
	dial := func(instance string) *Client {
		c, err := Dial(t.Context(), Options{
			Conn: fake.Conn(), Instance: instance,
			Node: func() criconfig.Node { return criconfig.Node{Name: "n", Instance: instance} },
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := dial("a"), dial("b")
	ids := map[*Client]string{}
	for uid, c := range map[types.UID]*Client{"of-a": a, "of-b": b} {
		pod := &corev1.Pod{}
		pod.Name, pod.Namespace, pod.UID = string(uid), "default", uid
		sandbox, err := c.RunSandbox(t.Context(), pod, plan.SandboxConfig{LogDir: "/logs", CgroupParent: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		ids[c] = sandbox.ID
	}
	raw := runtimeapi.NewRuntimeServiceClient(fake.Conn())
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "k", Namespace: "default", Uid: "of-kubelet"},
		Labels:   map[string]string{labelPodUID: "of-kubelet"},
	}
	kubelet, err := raw.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := a.Pods(t.Context())
	if err != nil || len(pods) != 1 || len(pods["of-a"].Sandboxes) != 1 {
		t.Errorf("got %v %v", pods, err)
	}
	for _, id := range []string{ids[b], kubelet.PodSandboxId} {
		if _, err := a.Sandbox(t.Context(), id); plan.KindOf(err) != plan.NotFound {
			t.Errorf("got %v for a foreign sandbox", err)
		}
	}
	foreign, err := a.ForeignSandboxes(t.Context())
	got := map[types.UID]Creator{}
	for _, s := range foreign {
		got[s.UID] = s.Creator
		if !s.Ready || s.CreatedAt.Unix() <= 0 {
			t.Errorf("%s: got ready %v, created at %v", s.UID, s.Ready, s.CreatedAt)
		}
	}
	if err != nil || len(got) != 2 || got["of-b"] != CreatorBerth || got["of-kubelet"] != CreatorKubelet {
		t.Errorf("got %v %v", got, err)
	}
}
