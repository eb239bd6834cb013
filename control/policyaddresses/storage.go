package policyaddresses

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	v1 "berth/services/policy/addresses/v1"
)

// syncTimeout limits how long a request waits until the objects are complete.
const syncTimeout = 10 * time.Second

// Storage serves the objects of a Publisher with the verbs get, list and watch.
type Storage struct{ p *Publisher }

var (
	_ rest.Storage              = Storage{}
	_ rest.Getter               = Storage{}
	_ rest.Lister               = Storage{}
	_ rest.Watcher              = Storage{}
	_ rest.Scoper               = Storage{}
	_ rest.SingularNameProvider = Storage{}
)

// Storage returns the storage of the resource.
func (p *Publisher) Storage() Storage { return Storage{p} }

// New returns an empty object.
func (Storage) New() runtime.Object { return &v1.NetworkPolicyAddresses{} }

// NewList returns an empty list.
func (Storage) NewList() runtime.Object { return &v1.NetworkPolicyAddressesList{} }

// Destroy does nothing.
func (Storage) Destroy() {}

// NamespaceScoped returns false.
func (Storage) NamespaceScoped() bool { return false }

// GetSingularName returns the name of one object.
func (Storage) GetSingularName() string { return v1.Resource }

// wait waits until the objects are complete.
func (s Storage) wait(ctx context.Context) error {
	select {
	case <-s.p.synced:
		return nil
	default:
	}
	timeout := time.NewTimer(syncTimeout)
	defer timeout.Stop()
	select {
	case <-s.p.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return apierrors.NewServiceUnavailable("the addresses of network policies are not complete yet")
	}
}

// Get returns an object.
func (s Storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	if o := s.p.journal.get(name); o != nil {
		return copyOf(o), nil
	}
	return nil, apierrors.NewNotFound(v1.GroupVersion.WithResource(v1.Resource).GroupResource(), name)
}

// copyOf returns a copy for one client: the encoder of a response sets the kind of an object. The members
// are shared.
func copyOf(o *v1.NetworkPolicyAddresses) *v1.NetworkPolicyAddresses {
	out := *o
	return &out
}

// List returns the selected objects.
func (s Storage) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	selected := selector(o)
	all, version := s.p.journal.list()
	out := &v1.NetworkPolicyAddressesList{
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)},
		Items:    make([]v1.NetworkPolicyAddresses, 0, len(all)),
	}
	for _, object := range all {
		if selected(object) {
			out.Items = append(out.Items, *object)
		}
	}
	return out, nil
}

// selector returns a function that reports whether the options select an object.
func selector(o *internalversion.ListOptions) func(*v1.NetworkPolicyAddresses) bool {
	byLabel, byField := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		byLabel = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		byField = o.FieldSelector
	}
	return func(a *v1.NetworkPolicyAddresses) bool {
		return byLabel.Matches(labels.Set(a.Labels)) && byField.Matches(fields.Set{"metadata.name": a.Name})
	}
}

// Watch returns the changes since a resource version. Without one, the present objects come first.
func (s Storage) Watch(ctx context.Context, o *internalversion.ListOptions) (watch.Interface, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	w := &watcher{j: s.p.journal, selected: selector(o), events: make(chan watch.Event), stop: make(chan struct{})}
	initial, from := w.j.list()
	requested := ""
	if o != nil {
		requested = o.ResourceVersion
		w.bookmark = o.SendInitialEvents != nil && *o.SendInitialEvents && o.AllowWatchBookmarks
	}
	all := requested == "" || requested == "0"
	if o != nil && o.SendInitialEvents != nil {
		all = *o.SendInitialEvents
	}
	if !all && requested != "" && requested != "0" {
		version, err := strconv.ParseUint(requested, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("resource version %q: not a number", requested))
		}
		from = version
	}
	if !all {
		initial = nil
	}
	if _, _, _, err := w.j.since(from); err != nil {
		return nil, err
	}
	go w.run(ctx, initial, from)
	return w, nil
}

// watcher is one watch.
type watcher struct {
	j        *journal
	selected func(*v1.NetworkPolicyAddresses) bool
	bookmark bool // after the initial events
	events   chan watch.Event
	stop     chan struct{}
	stopped  sync.Once
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.stopped.Do(func() { close(w.stop) }) }

// run sends events until the watch is stopped or too far behind.
func (w *watcher) run(ctx context.Context, initial []*v1.NetworkPolicyAddresses, from uint64) {
	defer close(w.events)
	for _, o := range initial {
		if w.selected(o) && !w.send(ctx, watch.Event{Type: watch.Added, Object: copyOf(o)}) {
			return
		}
	}
	if w.bookmark && !w.send(ctx, watch.Event{Type: watch.Bookmark, Object: &v1.NetworkPolicyAddresses{
		ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.FormatUint(from, 10),
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}}) {
		return
	}
	for {
		changes, version, advanced, err := w.j.since(from)
		if err != nil {
			if status, ok := err.(apierrors.APIStatus); ok {
				s := status.Status()
				w.send(ctx, watch.Event{Type: watch.Error, Object: &s})
			}
			return
		}
		for _, c := range changes {
			o, ok := c.Object.(*v1.NetworkPolicyAddresses)
			if ok && w.selected(o) && !w.send(ctx, watch.Event{Type: c.Type, Object: copyOf(o)}) {
				return
			}
		}
		from = version
		select {
		case <-ctx.Done():
			return
		case <-w.stop:
			return
		case <-advanced:
		}
	}
}

// send reports whether the event was sent.
func (w *watcher) send(ctx context.Context, e watch.Event) bool {
	select {
	case w.events <- e:
		return true
	case <-ctx.Done():
	case <-w.stop:
	}
	return false
}

// ConvertToTable returns the table for kubectl.
func (Storage) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"}, {Name: "Group", Type: "string"},
		{Name: "Pods", Type: "integer"}, {Name: "Addresses", Type: "string", Priority: 1},
	}}
	add := func(o *v1.NetworkPolicyAddresses) {
		var all []string
		for _, m := range o.Members {
			all = append(all, m.Addresses...)
		}
		row := metav1.TableRow{Cells: []any{o.Name, o.Group, len(o.Members), strings.Join(all, ",")}}
		row.Object = runtime.RawExtension{Object: o}
		table.Rows = append(table.Rows, row)
	}
	switch o := obj.(type) {
	case *v1.NetworkPolicyAddresses:
		table.ResourceVersion = o.ResourceVersion
		add(o)
	case *v1.NetworkPolicyAddressesList:
		table.ResourceVersion = o.ResourceVersion
		for i := range o.Items {
			add(&o.Items[i])
		}
	default:
		return nil, fmt.Errorf("table of a %T", obj)
	}
	return table, nil
}
