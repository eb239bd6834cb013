package source

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/internal/strictyaml"
	"berth/workloads"
)

// Limits of one file.
const (
	MaxFileSize  = 10 << 20 // bytes
	MaxDocuments = 1000     // documents and List items together
)

// Manifest is the content of one file: decoded strictly, without defaults, validation and identity.
type Manifest struct {
	Pods       []*corev1.Pod
	Workloads  []workloads.Object
	Services   []*corev1.Service
	ConfigMaps []*corev1.ConfigMap
	Secrets    []*corev1.Secret
	Warnings   []Warning // without File

	docs    map[any]strictyaml.Document // position by object
	written map[any][]byte              // JSON form of the file's text, of Pods and Workloads
}

// Line returns the line of a field of an object of this Manifest, by its path.
func (m *Manifest) Line(object any, path string) int {
	d, ok := m.docs[object]
	if !ok {
		return 0
	}
	return d.Line(path)
}

// Decode decodes the documents of a manifest. The error is strictyaml.Errors with all errors, and
// the Manifest is then nil.
func Decode(data []byte) (*Manifest, error) {
	docs, err := strictyaml.Parse(data, strictyaml.Limits{Documents: MaxDocuments})
	if err != nil {
		return nil, asErrors(err)
	}
	d := decoder{
		m:    &Manifest{docs: map[any]strictyaml.Document{}, written: map[any][]byte{}},
		seen: map[string]int{},
	}
	for _, doc := range docs {
		d.document(doc, "", 0)
	}
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return d.m, nil
}

func asErrors(err error) strictyaml.Errors {
	if list, ok := errors.AsType[strictyaml.Errors](err); ok {
		return list
	}
	if one, ok := errors.AsType[*strictyaml.Error](err); ok {
		return strictyaml.Errors{one}
	}
	return strictyaml.Errors{{Message: err.Error()}}
}

type decoder struct {
	m    *Manifest
	errs strictyaml.Errors
	seen map[string]int // line by object
	n    int
}

func (d *decoder) complain(line int, field, format string, args ...any) {
	d.errs = append(d.errs, &strictyaml.Error{Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// kindNames are the kinds that files may contain.
var kindNames = []string{
	"Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Service", "ConfigMap", "Secret",
}

// itemKind is the kind of the elements of a typed list.
var itemKind = map[string]string{
	"PodList": "Pod", "ServiceList": "Service", "ConfigMapList": "ConfigMap", "SecretList": "Secret",
}

// document decodes one document. as is the kind of an element of a typed list, which may omit its
// kind.
func (d *decoder) document(doc strictyaml.Document, as string, depth int) {
	version, kind := doc.Kind()
	line := doc.StartLine()
	if as != "" && kind == "" && version == "" {
		version, kind = "v1", as
	}
	if d.n++; d.n > MaxDocuments {
		if d.n == MaxDocuments+1 {
			d.complain(line, "", "more than %d objects in one file", MaxDocuments)
		}
		return
	}
	switch {
	case kind == "":
		d.complain(line, "kind", "must be specified (%s or List)", strings.Join(kindNames, ", "))
	case version == "":
		d.complain(line, "apiVersion", "must be specified (v1)")
	case as != "" && kind != as:
		d.complain(line, "kind", "must be %s in this list", as)
	case workloadVersions[kind] != "" && version == workloadVersions[kind]:
		d.workload(doc, kind)
	case version != "v1":
		d.other(doc, version, kind)
	case kind == "Pod":
		decodeInto(d, doc, &d.m.Pods)
	case kind == "Service":
		decodeInto(d, doc, &d.m.Services)
	case kind == "ConfigMap":
		decodeInto(d, doc, &d.m.ConfigMaps)
	case kind == "Secret":
		decodeInto(d, doc, &d.m.Secrets)
	case kind == "List" || itemKind[kind] != "":
		d.list(doc, itemKind[kind], depth)
	default:
		d.other(doc, version, kind)
	}
}

// other reports a document that is not supported in files. A supported kind with another version is
// an error, any other kind a warning.
func (d *decoder) other(doc strictyaml.Document, version, kind string) {
	switch kind {
	case "Pod", "Service", "ConfigMap", "Secret", "List", "PodList", "ServiceList", "ConfigMapList", "SecretList":
		d.complain(doc.Line("apiVersion"), "apiVersion", "must be v1 for kind %s", kind)
		return
	}
	if want := workloadVersions[kind]; want != "" {
		d.complain(doc.Line("apiVersion"), "apiVersion", "must be %s for kind %s", want, kind)
		return
	}
	what := fmt.Sprintf("%.64s %.64s", version, kind)
	if name := doc.Scalar("metadata", "name"); name != "" {
		what += fmt.Sprintf(" %.64s", name)
	}
	d.m.Warnings = append(d.m.Warnings, Warning{Line: doc.StartLine(),
		Message: what + " is ignored: files may contain " + strings.Join(kindNames, ", ")})
}

func (d *decoder) list(doc strictyaml.Document, as string, depth int) {
	if depth > 0 {
		d.complain(doc.StartLine(), "kind", "a list within a list is not supported")
		return
	}
	items, err := doc.Items()
	if err != nil {
		d.errs = append(d.errs, asErrors(err)...)
	}
	for _, item := range items {
		d.document(item, as, depth+1)
	}
}

// decodeInto decodes one object and adds it to the list of its kind.
func decodeInto[T any](d *decoder, doc strictyaml.Document, list *[]*T) {
	object := new(T)
	if d.object(doc, object) {
		*list = append(*list, object)
	}
}

// object decodes one object and records its position. It returns false after an error.
func (d *decoder) object(doc strictyaml.Document, object any) bool {
	written, err := doc.Decode(object)
	if err != nil {
		d.errs = append(d.errs, asErrors(err)...)
		return false
	}
	kind, key := identify(object)
	if key.Name == "" {
		d.complain(doc.Line("metadata.name"), "metadata.name", "must be specified")
		return false
	}
	id := kind + " " + key.String()
	if line, dup := d.seen[id]; dup {
		d.complain(doc.Line("metadata.name"), "metadata.name", "%s is in this file twice, first on line %d", id, line)
		return false
	}
	d.seen[id] = doc.Line("metadata.name")
	d.m.docs[object] = doc
	switch object.(type) {
	case *corev1.ConfigMap, *corev1.Secret, *corev1.Service:
	default:
		d.m.written[object] = written
	}
	return true
}

// identify returns the kind and the key of an object, and sets namespace default if it has none.
func identify(object any) (kind string, key types.NamespacedName) {
	switch o := object.(type) {
	case *corev1.Pod:
		o.Namespace = orDefault(o.Namespace)
		return "Pod", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	case *corev1.Service:
		o.Namespace = orDefault(o.Namespace)
		return "Service", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	case *corev1.ConfigMap:
		o.Namespace = orDefault(o.Namespace)
		return string(plan.ConfigMap), types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	case *corev1.Secret:
		o.Namespace = orDefault(o.Namespace)
		return string(plan.Secret), types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	}
	if w, ok := object.(workloads.Object); ok {
		w.SetNamespace(orDefault(w.GetNamespace()))
		return kindOf(w), types.NamespacedName{Namespace: w.GetNamespace(), Name: w.GetName()}
	}
	return "", types.NamespacedName{}
}

func orDefault(namespace string) string {
	if namespace == "" {
		return corev1.NamespaceDefault
	}
	return namespace
}
