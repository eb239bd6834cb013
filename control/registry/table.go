package registry

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/control/printers"
)

// TableConvertor makes the table of kubectl from a kind's columns.
type TableConvertor struct{ Columns printers.Columns }

// ConvertToTable prints one object or a list.
func (p TableConvertor) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	o, ok := options.(*metav1.TableOptions)
	return p.Columns.Table(obj, time.Now(), !ok || !o.NoHeaders)
}
