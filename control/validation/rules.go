package validation

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// RulesFor returns the rules of a kind. It returns false if there are none.
func RulesFor(kind schema.GroupKind) (Rules, bool) {
	r, ok := rulesByKind[kind]
	return r, ok
}

// rulesByKind holds the rules of all kinds.
var rulesByKind = merge(coreRules, storageRules, deviceRules, appsRules, batchRules, rbacRules, otherRules)

func merge(groups ...map[schema.GroupKind]Rules) map[schema.GroupKind]Rules {
	out := map[schema.GroupKind]Rules{}
	for _, g := range groups {
		maps.Copy(out, g)
	}
	return out
}

// object is implemented by all kinds.
type object interface {
	runtime.Object
	metav1.Object
}

// definition defines the rules of one type. Nil functions do nothing.
type definition[T object] struct {
	clusterScoped  bool
	validateName   validation.ValidateNameFunc // default: DNS subdomain
	setDefaults    func(T)                     // see Rules.Default
	prepare        func(T)
	prepareUpdate  func(obj, old T)
	validate       func(k *validator, obj T)      // for new and updated objects
	validateCreate func(k *validator, obj T)      // additionally for new objects
	validateUpdate func(k *validator, obj, old T) // additionally for updated objects
	validateStatus func(k *validator, obj, old T)
}

// rules converts a definition to functions of any object.
func (d definition[T]) rules() Rules {
	if d.validateName == nil {
		d.validateName = validation.NameIsDNSSubdomain
	}
	one := func(f func(T)) func(runtime.Object) {
		return func(obj runtime.Object) {
			if t, ok := obj.(T); ok && f != nil {
				f(t)
			}
		}
	}
	two := func(validate func(k *validator, obj, old T)) func(obj, old runtime.Object) field.ErrorList {
		return func(obj, old runtime.Object) field.ErrorList {
			t, ok := obj.(T)
			before, oldOK := old.(T)
			if !ok || !oldOK {
				return nil
			}
			k := &validator{}
			k.addAll(validation.ValidateObjectMetaAccessorUpdate(t, before, metadata))
			validate(k, t, before)
			return k.errs
		}
	}
	validate := func(k *validator, t T) {
		k.addAll(validation.ValidateObjectMetaAccessor(t, !d.clusterScoped, d.validateName, metadata))
		if d.validate != nil {
			d.validate(k, t)
		}
	}
	return Rules{
		Default: one(d.setDefaults),
		Prepare: one(d.prepare),
		PrepareUpdate: func(obj, old runtime.Object) {
			t, ok := obj.(T)
			if before, oldOK := old.(T); ok && oldOK && d.prepareUpdate != nil {
				d.prepareUpdate(t, before)
			}
		},
		Validate: func(obj runtime.Object) field.ErrorList {
			k := &validator{}
			if t, ok := obj.(T); ok {
				validate(k, t)
				if d.validateCreate != nil {
					d.validateCreate(k, t)
				}
			}
			return k.errs
		},
		ValidateUpdate: two(func(k *validator, obj, old T) {
			validate(k, obj)
			if d.validateUpdate != nil {
				d.validateUpdate(k, obj, old)
			}
		}),
		ValidateStatus: two(func(k *validator, obj, old T) {
			if d.validateStatus != nil {
				d.validateStatus(k, obj, old)
			}
		}),
	}
}
