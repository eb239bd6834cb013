package authz

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestNodeReadsOwnStorageObjects checks which VolumeAttachments, CSINodes and CSIDrivers a node can access.
func TestNodeReadsOwnStorageObjects(t *testing.T) {
	t.Parallel()
	attachment := func(name, node string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
	}
	client := fake.NewClientset(attachment("own", "x"), attachment("other", "y"))
	g, err := NewGraph(informers.NewSharedInformerFactory(client, 0), client)
	if err != nil {
		t.Fatal(err)
	}
	n := NewNodeAuthorizer(g)
	for _, row := range []struct {
		verb, resource, name string
		allowed              bool
	}{
		{"get", "volumeattachments", "own", true},
		{"get", "volumeattachments", "other", false},
		{"get", "volumeattachments", "missing", false},
		{"list", "volumeattachments", "", false},
		{"watch", "volumeattachments", "own", false},
		{"update", "volumeattachments", "own", false},
		{"get", "csinodes", "x", true},
		{"patch", "csinodes", "x", true},
		{"create", "csinodes", "", true},
		{"patch", "csinodes", "y", false},
		{"get", "csidrivers", "any", true},
		{"update", "csidrivers", "any", false},
	} {
		decision, _, err := n.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: nodeUserPrefix + "x", Groups: []string{nodesGroup}},
			Verb: row.verb, APIGroup: "storage.k8s.io", APIVersion: "v1", Resource: row.resource, Name: row.name,
			ResourceRequest: true,
		})
		if allowed := decision == authorizer.DecisionAllow; err != nil || allowed != row.allowed {
			t.Errorf("%s %s %s: got %v, %v, want %v", row.verb, row.resource, row.name, allowed, err, row.allowed)
		}
	}
}
