package validation

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules are those of one kind. None of the functions is nil. All expect objects
// of the kind's own Go type and of any other do nothing.
type Rules struct {
	// Default fills in what the object is silent about.
	Default func(obj runtime.Object)
	// Prepare completes a new object before it is judged, once its metadata
	// (UID, name) is known; PrepareUpdate a changed one.
	Prepare       func(obj runtime.Object)
	PrepareUpdate func(obj, old runtime.Object)
	// Validate judges a new object, ValidateUpdate a changed one (by itself and
	// against the one before), ValidateStatus a change of its status only.
	Validate       func(obj runtime.Object) field.ErrorList
	ValidateUpdate func(obj, old runtime.Object) field.ErrorList
	ValidateStatus func(obj, old runtime.Object) field.ErrorList
}

// RulesFor gives the rules of a kind; not ok: there are none.
func RulesFor(kind schema.GroupKind) (Rules, bool) {
	r, ok := rulesByKind[kind]
	return r, ok
}

// rulesByKind is the rules of all kinds.
var rulesByKind = merge(coreRules, storageRules, deviceRules, appsRules, batchRules, rbacRules, otherRules)

func merge(groups ...map[schema.GroupKind]Rules) map[schema.GroupKind]Rules {
	out := map[schema.GroupKind]Rules{}
	for _, g := range groups {
		maps.Copy(out, g)
	}
	return out
}

// object is what every kind is.
type object interface {
	runtime.Object
	metav1.Object
}

// definition is how the rules of one type are written down. What is nil does nothing.
type definition[T object] struct {
	clusterScoped  bool                        // not in a namespace
	validateName   validation.ValidateNameFunc // by default a DNS subdomain
	setDefaults    func(T)                     // see Rules.Default
	prepare        func(T)
	prepareUpdate  func(obj, old T)
	validate       func(k *validator, obj T)      // for new and for changed objects
	validateCreate func(k *validator, obj T)      // for new ones, besides
	validateUpdate func(k *validator, obj, old T) // for changed ones, besides
	validateStatus func(k *validator, obj, old T)
}

// rules turns what is written of a type into functions of any object.
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
	two := func(judge func(k *validator, obj, old T)) func(obj, old runtime.Object) field.ErrorList {
		return func(obj, old runtime.Object) field.ErrorList {
			t, ok := obj.(T)
			before, too := old.(T)
			if !ok || !too {
				return nil
			}
			k := &validator{}
			k.addAll(validation.ValidateObjectMetaAccessorUpdate(t, before, metadata))
			judge(k, t, before)
			return k.errs
		}
	}
	judge := func(k *validator, t T) {
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
			if before, too := old.(T); ok && too && d.prepareUpdate != nil {
				d.prepareUpdate(t, before)
			}
		},
		Validate: func(obj runtime.Object) field.ErrorList {
			k := &validator{}
			if t, ok := obj.(T); ok {
				judge(k, t)
				if d.validateCreate != nil {
					d.validateCreate(k, t)
				}
			}
			return k.errs
		},
		ValidateUpdate: two(func(k *validator, obj, old T) {
			judge(k, obj)
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
