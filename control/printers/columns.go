package printers

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Columns defines the printed columns of a kind.
type Columns struct {
	definitions []metav1.TableColumnDefinition
	row         func(obj runtime.Object, now time.Time) ([]any, error)
	conditions  func(obj runtime.Object) []metav1.TableRowCondition
	// order sorts the rows of a list. nil keeps the order of the list.
	order func(a, b runtime.Object) int
}

// ColumnsFor returns the columns of a kind. The default columns are name and age.
func ColumnsFor(kind schema.GroupKind) Columns {
	if c, ok := columnsByKind[kind]; ok {
		return c
	}
	return defaultColumns
}

// HasColumns reports whether the kind has columns of its own.
func HasColumns(kind schema.GroupKind) bool {
	_, ok := columnsByKind[kind]
	return ok
}

// Table prints an object or each object of a list. Without headers it returns only the rows, as for
// later events of a watch.
func (c Columns) Table(obj runtime.Object, now time.Time, headers bool) (*metav1.Table, error) {
	if c.row == nil {
		c = defaultColumns
	}
	out := &metav1.Table{}
	if headers {
		out.ColumnDefinitions = c.definitions
	}
	add := func(obj runtime.Object) error {
		cells, err := c.row(obj, now)
		if err != nil {
			return err
		}
		row := metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}}
		if c.conditions != nil {
			row.Conditions = c.conditions(obj)
		}
		out.Rows = append(out.Rows, row)
		return nil
	}
	if meta.IsListType(obj) {
		if err := c.eachInOrder(obj, add); err != nil {
			return nil, err
		}
	} else if err := add(obj); err != nil {
		return nil, err
	}
	if list, err := meta.ListAccessor(obj); err == nil {
		out.ResourceVersion = list.GetResourceVersion()
		out.Continue = list.GetContinue()
		out.RemainingItemCount = list.GetRemainingItemCount()
	} else if one, err := meta.CommonAccessor(obj); err == nil {
		out.ResourceVersion = one.GetResourceVersion()
	}
	return out, nil
}

// eachInOrder calls f for each object of a list.
func (c Columns) eachInOrder(list runtime.Object, f func(runtime.Object) error) error {
	if c.order == nil {
		return meta.EachListItem(list, f)
	}
	var all []runtime.Object
	err := meta.EachListItem(list, func(obj runtime.Object) error { all = append(all, obj); return nil })
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, c.order)
	for _, obj := range all {
		if err := f(obj); err != nil {
			return err
		}
	}
	return nil
}

// columnsByKind holds the columns of all kinds.
var columnsByKind = merge(coreKinds, storageKinds, deviceKinds, workloadKinds, accessKinds,
	networkingKinds, fairnessKinds, admissionKinds, smallGroupKinds)

func merge(groups ...map[schema.GroupKind]Columns) map[schema.GroupKind]Columns {
	out := map[schema.GroupKind]Columns{}
	for _, g := range groups {
		maps.Copy(out, g)
	}
	return out
}

// defaultColumns prints objects of any kind.
var defaultColumns = Columns{
	definitions: []metav1.TableColumnDefinition{nameColumn, ageColumn},
	row: func(obj runtime.Object, now time.Time) ([]any, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		return []any{m.GetName(), age(m.GetCreationTimestamp(), now)}, nil
	},
}

// columnsOf returns the columns of one Go type.
func columnsOf[T runtime.Object](
	row func(obj T, now time.Time) []any,
	columns ...metav1.TableColumnDefinition,
) Columns {
	return Columns{
		definitions: columns,
		row: func(obj runtime.Object, now time.Time) ([]any, error) {
			t, ok := obj.(T)
			if !ok {
				return nil, fmt.Errorf("show a %T: the columns are those of %T", obj, t)
			}
			return row(t, now), nil
		},
	}
}

var (
	nameColumn = metav1.TableColumnDefinition{
		Name:        "Name",
		Type:        "string",
		Format:      "name",
		Description: "Name, unique within its namespace.",
	}
	ageColumn = stringColumn("Age", "Time since the creation of the object.")
)

func stringColumn(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

func integerColumn(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}
}

// wideColumn makes a column that only "-o wide" prints.
func wideColumn(column metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	column.Priority = 1
	return column
}
