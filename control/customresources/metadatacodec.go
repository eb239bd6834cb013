package customresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// MetadataCodec decodes the metadata of stored custom resources, in any version and without the
// schema: names, UID, owners, finalizers and the time of deletion.
type MetadataCodec struct{}

var _ runtime.Codec = MetadataCodec{}

// Decode decodes an object into a PartialObjectMetadata.
func (MetadataCodec) Decode(data []byte, _ *schema.GroupVersionKind,
	into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var stored struct {
		metav1.TypeMeta

		Metadata struct {
			Name              string                  `json:"name"`
			Namespace         string                  `json:"namespace"`
			UID               types.UID               `json:"uid"`
			OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
			Finalizers        []string                `json:"finalizers"`
			DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, nil, fmt.Errorf("decode metadata: %w", err)
	}
	out, ok := into.(*metav1.PartialObjectMetadata)
	if !ok {
		out = &metav1.PartialObjectMetadata{}
	}
	out.ObjectMeta = metav1.ObjectMeta{
		Name: stored.Metadata.Name, Namespace: stored.Metadata.Namespace, UID: stored.Metadata.UID,
		OwnerReferences: stored.Metadata.OwnerReferences, Finalizers: stored.Metadata.Finalizers,
		DeletionTimestamp: stored.Metadata.DeletionTimestamp,
	}
	kind := stored.GroupVersionKind()
	return out, &kind, nil
}

// Encode returns an error: the objects are only read.
func (MetadataCodec) Encode(runtime.Object, io.Writer) error {
	return errors.New("metadata of custom resources is read-only")
}

// Identifier returns the name of the codec.
func (MetadataCodec) Identifier() runtime.Identifier { return "customresources.MetadataCodec" }
