package scheme

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// addCopies adds the conversion of each type to itself. Mutating webhooks and policies change an object in a published
// version, and the result is converted to the internal version, which has the same type.
func addCopies(s *runtime.Scheme) {
	seen := map[reflect.Type]bool{}
	for kind, goType := range s.AllKnownTypes() {
		if seen[goType] || strings.HasPrefix(goType.PkgPath(), "k8s.io/apimachinery/") {
			continue
		}
		seen[goType] = true
		object, err := s.New(kind)
		if err != nil {
			panic(fmt.Sprintf("scheme: create a %s: %v", kind, err))
		}
		utilruntime.Must(s.AddConversionFunc(object, object, copyObject))
	}
}

// copyObject copies an object to another one of the same type, which keeps its kind. The objects share their fields.
func copyObject(in, out any, _ conversion.Scope) error {
	to, ok := out.(runtime.Object)
	if !ok {
		return fmt.Errorf("convert %T to %T: not an object", in, out)
	}
	kind := to.GetObjectKind().GroupVersionKind()
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in).Elem())
	to.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}
