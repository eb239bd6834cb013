package registry

import (
	"maps"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// generationChanged reports whether a change increments metadata.generation.
func (k *Kind) generationChanged(obj, old runtime.Object) bool {
	now, before := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := range now.NumField() {
		switch now.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !apiequality.Semantic.DeepEqual(now.Field(i).Interface(), before.Field(i).Interface()) {
			return true
		}
	}
	if k.GenerationMetadata == nil {
		return false
	}
	m, err := meta.Accessor(obj)
	oldMeta, oldErr := meta.Accessor(old)
	return err == nil && oldErr == nil && !maps.Equal(k.GenerationMetadata(m), k.GenerationMetadata(oldMeta))
}

func clearField(obj runtime.Object, name string) {
	if f := reflect.ValueOf(obj).Elem().FieldByName(name); f.IsValid() {
		f.SetZero()
	}
}

func copyField(to, from runtime.Object, name string) {
	if f := reflect.ValueOf(to).Elem().FieldByName(name); f.IsValid() {
		f.Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}

// copyFieldsExcept copies all fields except the type, the metadata and the named one.
func copyFieldsExcept(to, from runtime.Object, name string) {
	target, source := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range target.NumField() {
		switch target.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", name:
		default:
			target.Field(i).Set(source.Field(i))
		}
	}
}

func setGeneration(obj runtime.Object, n int64) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetGeneration(n)
	}
}

func generation(obj runtime.Object) int64 {
	m, err := meta.Accessor(obj)
	if err != nil {
		return 0
	}
	return m.GetGeneration()
}
