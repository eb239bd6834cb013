package images

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/agent/plan"
	"berth/podspec"
)

const private = "reg.io/team/app:1"

// onlyWithRight is a registry that accepts only the password of "right".
func onlyWithRight(_ string, auth *runtimeapi.AuthConfig) error {
	if auth.GetUsername() != "right" {
		return status.Error(codes.Unknown, "401 Unauthorized")
	}
	return nil
}

// secretOf returns a pull secret for reg.io with that user and UID.
func secretOf(user, uid string) plan.Object {
	o := dockerConfig(map[string]string{"reg.io": user})
	o.Secret = o.Secret.DeepCopy()
	o.Secret.UID = types.UID(uid)
	return o
}

// tenants returns two pods and the pull secrets of the first one.
func tenants() (owner, stranger *corev1.Pod, secrets plan.Objects) {
	return newPod("owner", 0, "key"), newPod("stranger", 0), plan.Objects{secretRef("key"): secretOf("right", "uid-1")}
}

// testNode has images and records that survive restarts of the agent.
type testNode struct {
	t    *testing.T
	f    *fakeService
	dir  string
	verf kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	*Manager
}

func newTestNode(t *testing.T) *testNode {
	n := &testNode{t: t, f: newFake(), dir: filepath.Join(t.TempDir(), "image_manager"),
		verf: kubeletv1beta1.NeverVerifyPreloadedImages}
	n.f.pullErr = onlyWithRight
	n.restart()
	return n
}

func (n *testNode) restart(exempt ...string) {
	v := Verification{Policy: n.verf, RecordsDir: n.dir}
	for _, s := range exempt {
		p, err := podspec.ParseImagePattern(s)
		if err != nil {
			n.t.Fatal(err)
		}
		v.Allowlist = append(v.Allowlist, p)
	}
	n.Manager = newImages(n.t, Options{Service: n.f, Verify: v})
}

func (n *testNode) pull(pod *corev1.Pod, secrets plan.Objects) error {
	_, err := n.Pull(n.t.Context(), pod, pullAction(private), secrets)
	return err
}

func (n *testNode) wantPresent(pod *corev1.Pod, secrets plan.Objects, want bool) {
	n.t.Helper()
	_, present, err := n.Present(n.t.Context(), pod, private, secrets)
	if err != nil || present != want {
		n.t.Errorf("image present for %s: %v (%v), want %v", pod.Name, present, err, want)
	}
}

func (n *testNode) files(sub string) []string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.dir, sub, "sha256-*"))
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

func TestPrivateImageRequiresCredentials(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, stranger, secrets := tenants()
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	for range 2 { // before and after a restart of the agent
		n.wantPresent(owner, secrets, true)
		n.wantPresent(stranger, nil, false)
		wantKind(t, n.pull(stranger, nil), plan.Denied, "ErrImagePull")
		n.restart()
	}
	if p := n.files("pulling"); len(p) != 0 {
		t.Errorf("remaining intents: %v", p)
	}
}

func TestPodWithCredentialsGetsAccess(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, _, secrets := tenants()
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	same := newPod("same", 0, "copy") // the same credentials in another Secret
	n.wantPresent(same, plan.Objects{secretRef("copy"): secretOf("right", "uid-2")}, true)
	n.wantPresent(same, plan.Objects{secretRef("copy"): secretOf("wrong", "uid-3")}, false)
	// The password in the recorded Secret changed, but it is the same Secret.
	n.wantPresent(owner, plan.Objects{secretRef("key"): secretOf("newer", "uid-1")}, true)
	// A recreated Secret with the same name, or one without a UID, does not match.
	n.wantPresent(owner, plan.Objects{secretRef("key"): secretOf("wrong", "uid-4")}, false)
	n.wantPresent(owner, plan.Objects{secretRef("key"): secretOf("wrong", "")}, false)
	otherNamespace := owner.DeepCopy()
	otherNamespace.Namespace = "elsewhere"
	n.wantPresent(otherNamespace, plan.Objects{secretRef("key"): secretOf("wrong", "uid-1")}, false)
}

func TestPublicImageIsAccessible(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.f.pullErr = nil
	owner, stranger, secrets := tenants()
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	n.wantPresent(stranger, nil, false) // not known yet
	if err := n.pull(stranger, nil); err != nil {
		t.Fatal(err)
	}
	n.wantPresent(stranger, nil, true)
	n.wantPresent(owner, secrets, true)
}

func TestVerificationPolicies(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		policy            kubeletv1beta1.ImagePullCredentialsVerificationPolicy
		exempt            []string
		preloaded, pulled bool // present for the stranger
	}{
		{kubeletv1beta1.NeverVerify, nil, true, true},
		{kubeletv1beta1.NeverVerifyPreloadedImages, nil, true, false},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, nil, false, false},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"reg.io/team/*"}, true, true},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"reg.io/team/app"}, true, true},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"reg.io/tea", "reg.io/team/ap", "other.io/*"}, false,
			false},
		{kubeletv1beta1.AlwaysVerify, nil, false, false},
	} {
		n := newTestNode(t)
		n.verf = row.policy
		n.restart(row.exempt...)
		owner, stranger, secrets := tenants()
		n.f.add(&runtimeapi.Image{Id: "id-of-" + private, RepoTags: []string{private}})
		n.wantPresent(stranger, nil, row.preloaded)
		always := pullAction(private)
		always.Policy = corev1.PullAlways
		if _, err := n.Pull(t.Context(), owner, always, secrets); err != nil {
			t.Fatal(err)
		}
		n.wantPresent(owner, secrets, true)
		n.wantPresent(stranger, nil, row.pulled)
		if t.Failed() {
			t.Fatalf("policy %s, exempt %v: unexpected result", row.policy, row.exempt)
		}
	}
}

// After a crash during a pull, the image may have been pulled with unknown
// credentials.
func TestInterruptedPullGrantsNoAccess(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, stranger, secrets := tenants()
	name, _ := podspec.ParseImageName(private)
	if err := n.records.recordIntent(private); err != nil {
		t.Fatal(err)
	}
	n.f.add(&runtimeapi.Image{Id: "id-of-" + private, RepoTags: []string{private}})
	n.restart()
	n.wantPresent(stranger, nil, false)
	n.wantPresent(owner, secrets, false) // because the credentials are unknown
	wantKind(t, n.pull(stranger, nil), plan.Denied, "ErrImagePull")
	n.restart()
	n.wantPresent(stranger, nil, false)
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	n.wantPresent(owner, secrets, true)
	if left := n.files("pulling"); len(left) != 0 {
		t.Errorf("stale intent still exists: %v", left)
	}
	if known, pulled := n.records.lookup(name, "id-of-"+private); !pulled || len(known.KubernetesSecrets) != 1 {
		t.Errorf("%+v %v", known, pulled)
	}
}

func TestFailedPullRemovesIntent(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, stranger, _ := tenants()
	wantKind(t, n.pull(owner, plan.Objects{secretRef("key"): secretOf("wrong", "u")}), plan.Denied, "ErrImagePull")
	if left := n.files("pulling"); len(left) != 0 {
		t.Errorf("%v", left)
	}
	n.f.add(&runtimeapi.Image{Id: "i", RepoTags: []string{private}}) // by other means
	n.wantPresent(stranger, nil, true)
	n.f.pullErr = func(string, *runtimeapi.AuthConfig) error { return status.Error(codes.DeadlineExceeded, "") }
	always := pullAction(private)
	always.Policy = corev1.PullAlways
	if _, err := n.Pull(t.Context(), owner, always, nil); err == nil {
		t.Fatal("pull succeeded")
	}
	n.restart()
	n.wantPresent(stranger, nil, false)
}

func TestDamagedRecordGrantsNoAccess(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, _, secrets := tenants()
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	files := n.files("pulled")
	if len(files) != 1 {
		t.Fatalf("%v", files)
	}
	if err := os.WriteFile(files[0], []byte(`{"imageRef": "id-`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.wantPresent(owner, secrets, false)
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	n.wantPresent(owner, secrets, true)
}

// TestRecordsAreCompatibleWithKubelet: the record files have the kubelet's format, so a node can switch
// between the two.
func TestRecordsAreCompatibleWithKubelet(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, stranger, secrets := tenants()
	const written = `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",` +
		`"lastUpdatedTime":"2026-01-02T03:04:05Z",` +
		`"imageRef":"id-of-reg.io/team/app:1",` +
		`"credentialMapping":{"reg.io/team/app":{"kubernetesSecrets":[` +
		`{"uid":"uid-1","namespace":"ns","name":"key","credentialHash":"x"}]}}}`
	if err := os.MkdirAll(filepath.Join(n.dir, "pulled"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.dir, "pulled", recordFileName("id-of-"+private))
	if err := os.WriteFile(file, []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	n.f.add(&runtimeapi.Image{Id: "id-of-" + private, RepoTags: []string{private}})
	owner.Namespace = "ns"
	n.wantPresent(owner, secrets, true)
	n.wantPresent(stranger, nil, false)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rec kubeletv1beta1.ImagePulledRecord
	if err := json.Unmarshal(raw, &rec); err != nil || rec.Kind != "ImagePulledRecord" ||
		rec.APIVersion != "kubelet.config.k8s.io/v1beta1" {
		t.Fatalf("%v in %s", err, raw)
	}
	got := rec.CredentialMapping["reg.io/team/app"].KubernetesSecrets
	if len(got) != 1 || got[0].UID != "uid-1" || len(got[0].CredentialHash) != 64 {
		t.Errorf("the current content of the Secret is not recorded: %s", raw)
	}
}

func TestRecordsArePruned(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	owner, _, secrets := tenants()
	if err := n.pull(owner, secrets); err != nil {
		t.Fatal(err)
	}
	if err := n.records.recordIntent("reg.io/never:1"); err != nil {
		t.Fatal(err)
	}
	n.restart()
	later := n.now().Add(time.Hour)
	n.records.prune([]storedImage{{id: "id-of-" + private, names: []string{private}}}, later)
	if p, q := n.files("pulled"), n.files("pulling"); len(p) != 1 || len(q) != 0 {
		t.Errorf("%v %v: want the record of the existing image and no intent", p, q)
	}
	n.records.prune(nil, n.now().Add(-time.Hour))
	if p := n.files("pulled"); len(p) != 1 {
		t.Error("a record that is newer than the list was pruned")
	}
	n.records.prune(nil, later)
	if p := n.files("pulled"); len(p) != 0 {
		t.Errorf("%v", p)
	}
}

func TestPullFailsWhenIntentCannotBeRecorded(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	if err := os.WriteFile(n.dir, nil, 0o600); err != nil { // the directory cannot be created
		t.Fatal(err)
	}
	owner, _, secrets := tenants()
	wantKind(t, n.pull(owner, secrets), plan.Other, "ErrImagePull")
	if len(n.f.pulled) != 0 {
		t.Errorf("the runtime was called: %v", n.f.pulled)
	}
}
