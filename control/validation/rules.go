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

// Of gives the rules of a kind; not ok: there are none.
func Of(kind schema.GroupKind) (Rules, bool) {
	r, ok := table[kind]
	return r, ok
}

// table is the rules of all kinds.
var table = join(coreRules, storageRules, deviceRules, appsRules, batchRules, rbacRules, otherRules)

func join(groups ...map[schema.GroupKind]Rules) map[schema.GroupKind]Rules {
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

// kind is how the rules of one type are written down. What is nil does nothing.
type kind[T object] struct {
	cluster bool                        // not in a namespace
	named   validation.ValidateNameFunc // by default a DNS subdomain
	fill    func(T)                     // see Rules.Default
	prepare func(T)
	carry   func(obj, old T)
	judge   func(k *checker, obj T)      // for new and for changed objects
	fresh   func(k *checker, obj T)      // for new ones, besides
	change  func(k *checker, obj, old T) // for changed ones, besides
	status  func(k *checker, obj, old T)
}

// rules turns what is written of a type into functions of any object.
func (d kind[T]) rules() Rules {
	if d.named == nil {
		d.named = validation.NameIsDNSSubdomain
	}
	one := func(f func(T)) func(runtime.Object) {
		return func(obj runtime.Object) {
			if t, ok := obj.(T); ok && f != nil {
				f(t)
			}
		}
	}
	two := func(judge func(k *checker, obj, old T)) func(obj, old runtime.Object) field.ErrorList {
		return func(obj, old runtime.Object) field.ErrorList {
			t, ok := obj.(T)
			before, too := old.(T)
			if !ok || !too {
				return nil
			}
			k := &checker{}
			k.addAll(validation.ValidateObjectMetaAccessorUpdate(t, before, metadata))
			judge(k, t, before)
			return k.errs
		}
	}
	judge := func(k *checker, t T) {
		k.addAll(validation.ValidateObjectMetaAccessor(t, !d.cluster, d.named, metadata))
		if d.judge != nil {
			d.judge(k, t)
		}
	}
	return Rules{
		Default: one(d.fill),
		Prepare: one(d.prepare),
		PrepareUpdate: func(obj, old runtime.Object) {
			t, ok := obj.(T)
			if before, too := old.(T); ok && too && d.carry != nil {
				d.carry(t, before)
			}
		},
		Validate: func(obj runtime.Object) field.ErrorList {
			k := &checker{}
			if t, ok := obj.(T); ok {
				judge(k, t)
				if d.fresh != nil {
					d.fresh(k, t)
				}
			}
			return k.errs
		},
		ValidateUpdate: two(func(k *checker, obj, old T) {
			judge(k, obj)
			if d.change != nil {
				d.change(k, obj, old)
			}
		}),
		ValidateStatus: two(func(k *checker, obj, old T) {
			if d.status != nil {
				d.status(k, obj, old)
			}
		}),
	}
}
