package registry

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// MustCast is an object as the Go type of its row. That nothing else comes is for the
// table to hold: whoever calls cannot mend it, so it panics and names both types,
// and the server answers that one request with an internal error.
func MustCast[T runtime.Object](obj any) T {
	as, ok := obj.(T)
	if !ok {
		panic(fmt.Sprintf("a %T came where a %v belongs", obj, reflect.TypeFor[T]()))
	}
	return as
}
