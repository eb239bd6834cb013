package workloads

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// RevisionData returns the data of a ControllerRevision of a pod template: a strategic merge patch that replaces the
// template, byte for byte as upstream's StatefulSet and DaemonSet controllers write it. "kubectl rollout undo" applies
// it to the owner.
func RevisionData(template *corev1.PodTemplateSpec) ([]byte, error) {
	typed, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(typed, &fields); err != nil {
		return nil, fmt.Errorf("decode pod template: %w", err)
	}
	fields["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": fields}})
}

// RevisionTemplate returns the pod template that a ControllerRevision restores.
func RevisionTemplate(revision *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var data struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(revision.Data.Raw, &data); err != nil {
		return nil, fmt.Errorf("decode controller revision %s: %w", revision.Name, err)
	}
	if data.Spec.Template == nil {
		return nil, fmt.Errorf("decode controller revision %s: no pod template", revision.Name)
	}
	return data.Spec.Template, nil
}

// EqualRevision reports whether a revision restores template, whose RevisionData is data. Data of an older API version
// can differ although it means the same, because serialization and defaults change. setDefaults sets the defaults of a
// template; without it such data starts a rollout.
func EqualRevision(revision *appsv1.ControllerRevision, data []byte, template *corev1.PodTemplateSpec,
	setDefaults func(*corev1.PodTemplateSpec)) bool {
	if bytes.Equal(revision.Data.Raw, data) {
		return true
	}
	restored, err := RevisionTemplate(revision)
	if err != nil {
		return false
	}
	current := template.DeepCopy()
	setDefaults(restored)
	setDefaults(current)
	return apiequality.Semantic.DeepEqual(restored, current)
}

// ClaimRevisions returns the ControllerRevisions of the owner, oldest first, and the writes that adopt those without a
// controller that match the selector. An owner that is being deleted does not adopt.
func ClaimRevisions(owner Object, kind metav1.TypeMeta, selector labels.Selector,
	revisions []*appsv1.ControllerRevision) (owned []*appsv1.ControllerRevision, writes []Write) {
	for _, r := range revisions {
		ref := metav1.GetControllerOfNoCopy(r)
		switch {
		case !selector.Matches(labels.Set(r.Labels)):
		case ref != nil && ref.UID == owner.GetUID():
			owned = append(owned, r)
		case ref == nil && owner.GetDeletionTimestamp() == nil && r.DeletionTimestamp == nil:
			adopted := withOwner(r, owner, kind)
			owned = append(owned, adopted)
			writes = append(writes, Write{Verb: Patch, Base: r, Object: adopted, VerifyOwner: true})
		}
	}
	slices.SortStableFunc(owned, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return owned, writes
}

// NextRevision returns the number of the next revision. The revisions are sorted as by ClaimRevisions.
func NextRevision(revisions []*appsv1.ControllerRevision) int64 {
	if len(revisions) == 0 {
		return 1
	}
	return revisions[len(revisions)-1].Revision + 1
}

// Renumber returns a copy of the revision with the number, and the write that stores it. If the revision has the
// number already, there is no write.
func Renumber(revision *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, []Write) {
	if revision.Revision == number {
		return revision, nil
	}
	out := revision.DeepCopy()
	out.Revision = number
	return out, []Write{{Verb: Patch, Base: revision, Object: out}}
}

// TruncateRevisions returns the writes that delete the oldest revisions that are not live, until at most limit of
// them are left. A negative limit keeps all. The revisions are sorted as by ClaimRevisions.
func TruncateRevisions(revisions []*appsv1.ControllerRevision, limit int, live func(*appsv1.ControllerRevision) bool) (
	writes []Write) {
	old := slices.DeleteFunc(slices.Clone(revisions), live)
	if limit < 0 || len(old) <= limit {
		return nil
	}
	for _, r := range old[:len(old)-limit] {
		if r.DeletionTimestamp == nil {
			writes = append(writes, Write{Verb: Delete, Object: r})
		}
	}
	return writes
}
