package rules

import (
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules are the functions of one kind. None is nil. They expect the Go type of the kind and do
// nothing for other types.
type Rules struct {
	// Default sets defaults of unset fields.
	Default func(obj runtime.Object)
	// Prepare completes a new object before validation, when its metadata (UID, name) is set.
	// PrepareUpdate completes an updated object.
	Prepare       func(obj runtime.Object)
	PrepareUpdate func(obj, old runtime.Object)
	// Validate validates a new object. ValidateUpdate validates an updated object by itself and
	// against the old one. ValidateStatus validates an update of the status.
	Validate       func(obj runtime.Object) field.ErrorList
	ValidateUpdate func(obj, old runtime.Object) field.ErrorList
	ValidateStatus func(obj, old runtime.Object) field.ErrorList
}

// Object is implemented by all kinds.
type Object interface {
	runtime.Object
	metav1.Object
}

// Definition defines the rules of one type, with validators of type K. Nil functions do nothing.
type Definition[T Object, K Collector] struct {
	ClusterScoped bool
	ValidateName  validation.ValidateNameFunc // default: DNS subdomain
	// AnyFinalizer accepts finalizers that are qualified names without a domain, as Kubernetes does for some kinds.
	AnyFinalizer bool
	// ValidateNewName validates the name of a new object. The default is ValidateName.
	ValidateNewName validation.ValidateNameFunc

	SetDefaults    func(T) // see Rules.Default
	Prepare        func(T)
	PrepareUpdate  func(obj, old T)
	Validate       func(k K, obj T)      // for new and updated objects
	ValidateCreate func(k K, obj T)      // additionally for new objects
	ValidateUpdate func(k K, obj, old T) // additionally for updated objects
	ValidateStatus func(k K, obj, old T)
}

// Rules converts a definition to functions of any object. newValidator returns an empty validator.
func (d Definition[T, K]) Rules(newValidator func() K) Rules {
	if d.ValidateName == nil {
		d.ValidateName = validation.NameIsDNSSubdomain
	}
	if d.ValidateNewName == nil {
		d.ValidateNewName = d.ValidateName
	}
	one := func(f func(T)) func(runtime.Object) {
		return func(obj runtime.Object) {
			if t, ok := obj.(T); ok && f != nil {
				f(t)
			}
		}
	}
	two := func(validate func(k K, obj, old T)) func(obj, old runtime.Object) field.ErrorList {
		return func(obj, old runtime.Object) field.ErrorList {
			t, ok := obj.(T)
			before, oldOK := old.(T)
			if !ok || !oldOK {
				return nil
			}
			k := newValidator()
			k.AddAll(validation.ValidateObjectMetaAccessorUpdate(t, before, Metadata()))
			if !d.AnyFinalizer {
				finalizers(k, t)
			}
			validate(k, t, before)
			return k.Errors()
		}
	}
	validate := func(k K, t T, name validation.ValidateNameFunc) {
		k.AddAll(validation.ValidateObjectMetaAccessor(t, !d.ClusterScoped, name, Metadata()))
		if d.Validate != nil {
			d.Validate(k, t)
		}
	}
	return Rules{
		Default: one(d.SetDefaults),
		Prepare: one(d.Prepare),
		PrepareUpdate: func(obj, old runtime.Object) {
			t, ok := obj.(T)
			if before, oldOK := old.(T); ok && oldOK && d.PrepareUpdate != nil {
				d.PrepareUpdate(t, before)
			}
		},
		Validate: func(obj runtime.Object) field.ErrorList {
			k := newValidator()
			if t, ok := obj.(T); ok {
				validate(k, t, d.ValidateNewName)
				if !d.AnyFinalizer {
					finalizers(k, t)
				}
				if d.ValidateCreate != nil {
					d.ValidateCreate(k, t)
				}
			}
			return k.Errors()
		},
		ValidateUpdate: two(func(k K, obj, old T) {
			validate(k, obj, d.ValidateName)
			if d.ValidateUpdate != nil {
				d.ValidateUpdate(k, obj, old)
			}
		}),
		ValidateStatus: two(func(k K, obj, old T) {
			if d.ValidateStatus != nil {
				d.ValidateStatus(k, obj, old)
			}
		}),
	}
}

// finalizers validates the names of finalizers.
func finalizers(k Collector, obj metav1.Object) {
	for i, f := range obj.GetFinalizers() {
		k.AddAll(Finalizer(Metadata().Child("finalizers").Index(i), f))
	}
}
