package apiserver

import (
	"context"
	"encoding/json"
	"hash/fnv"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/status/events"
	"berth/internal/apiclient"
)

// EventsOptions is what NewEvents needs.
type EventsOptions struct {
	Client   *apiclient.Client
	NodeName string
	Told     *events.Subscription // what is to be sent; closed by Run
	QPS      int                  // events per second, beside Burst; 0: no limit
	Burst    int
	Log      *slog.Logger
	Now      func() time.Time // default time.Now

	// Busy reports that the node and its server have something better to do: events
	// wait for a while then. May be nil.
	Busy func() bool
}

// Events sends events to the server. One that is told again while it waits is
// sent once, with its newest count.
type Events struct {
	opt  EventsOptions
	all  *bucket
	more chan struct{} // capacity 1

	mu      sync.Mutex
	waiting map[string]*corev1.Event // by namespace and name
	order   []queued
	last    time.Time // when one was taken to be sent
	about   map[types.UID]*bucket
}

const (
	mostWaiting = 1000
	// How long an event lets what is better go first, and how often it looks. From
	// then on they are told all the same, but slowly: those of fifty pods that start
	// would cost as much as the statuses that somebody waits for. Many that wait do
	// not wait any more.
	polite     = 4 * time.Second
	politeFor  = 50 * time.Millisecond
	politePace = 100 * time.Millisecond
	politeMost = mostWaiting / 2
	// What one object may have told of it: what is more is spam.
	aboutBurst = 25
	aboutEvery = 5 * time.Minute
	mostAbout  = 1000
)

// queued is an event that waits, by its key, and since when.
type queued struct {
	key   string
	since time.Time
}

// NewEvents returns a sender that Run has to be called for.
func NewEvents(o EventsOptions) *Events {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Events{opt: o, more: make(chan struct{}, 1), waiting: map[string]*corev1.Event{}, about: map[types.UID]*bucket{}}
	if o.QPS > 0 {
		e.all = &bucket{left: float64(o.Burst), most: float64(o.Burst), every: time.Second / time.Duration(o.QPS), at: o.Now()}
	}
	return e
}

// OfNode tells an event of the node itself. It never waits.
func (e *Events) OfNode(kind, reason, message string) {
	now := metav1.NewTime(e.opt.Now())
	e.take(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: e.opt.NodeName + "." + nameOf(reason, message, now.Time)},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: e.opt.NodeName, UID: types.UID(e.opt.NodeName)}, // as upstream: the UID is not known at first
		Type:           kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "kubelet", Host: e.opt.NodeName},
		ReportingController: "kubelet", ReportingInstance: e.opt.NodeName,
	})
}

// Run sends until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev := range e.opt.Told.C {
			e.take(&ev)
		}
	})
	defer wg.Wait()
	defer e.opt.Told.Close()
	for wait := retryFirst; ctx.Err() == nil; {
		if e.lets() {
			pause(ctx, politeFor)
			continue
		}
		ev := e.next()
		if ev == nil {
			select {
			case <-ctx.Done():
			case <-e.more:
			}
			continue
		}
		if e.all != nil {
			pause(ctx, e.all.take(e.opt.Now()))
		}
		switch err := e.send(ctx, ev); {
		case err == nil:
			wait = retryFirst
		case lasting(err):
			e.opt.Log.Debug("the server does not take an event", "about", ev.InvolvedObject.Name, "reason", ev.Reason, "err", err)
		default: // it is away: the event is as good later
			e.back(ev)
			pause(ctx, wait)
			wait = min(2*wait, retryLast)
		}
	}
	return nil
}

// take puts an event among those that wait.
func (e *Events) take(ev *corev1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := ev.Namespace + "/" + ev.Name
	if _, waits := e.waiting[key]; !waits {
		if !e.mayTell(ev.InvolvedObject.UID) {
			return
		}
		if len(e.order) >= mostWaiting { // the server has been away for long: the newest count
			delete(e.waiting, e.order[0].key)
			e.order = e.order[1:]
		}
		e.order = append(e.order, queued{key, e.opt.Now()})
	}
	e.waiting[key] = ev
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// mayTell reports whether an object has not had too much told of it.
func (e *Events) mayTell(uid types.UID) bool {
	b := e.about[uid]
	if b == nil {
		if len(e.about) >= mostAbout {
			clear(e.about) // a burst more for each is less than what is kept
		}
		b = &bucket{left: aboutBurst, most: aboutBurst, every: aboutEvery, at: e.opt.Now()}
		e.about[uid] = b
	}
	return b.has(e.opt.Now())
}

// lets reports whether the event whose turn it is lets something else go first.
func (e *Events) lets() bool {
	e.mu.Lock()
	now, n := e.opt.Now(), len(e.order)
	waits := n > 0 && n <= politeMost && e.opt.Busy != nil && (now.Before(e.order[0].since.Add(polite)) || now.Before(e.last.Add(politePace)))
	e.mu.Unlock()
	return waits && e.opt.Busy()
}

func (e *Events) next() *corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.order) == 0 {
		return nil
	}
	key := e.order[0].key
	e.order, e.last = e.order[1:], e.opt.Now()
	ev := e.waiting[key]
	delete(e.waiting, key)
	return ev
}

// back puts an event that could not be sent in front again, unless it was told
// anew meanwhile.
func (e *Events) back(ev *corev1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := ev.Namespace + "/" + ev.Name
	if _, newer := e.waiting[key]; newer {
		return
	}
	e.waiting[key] = ev
	e.order = append([]queued{{key: key}}, e.order...) // it has waited
}

// send makes an event, or raises the count of one that is there.
func (e *Events) send(ctx context.Context, ev *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	out := ev.DeepCopy()
	out.TypeMeta = metav1.TypeMeta{}
	out.ObjectMeta = metav1.ObjectMeta{Namespace: ev.Namespace, Name: ev.Name}
	create := func() error { return e.opt.Client.Create(ctx, apiclient.Events, out.Namespace, out, nil) }
	patch := func() error {
		text, err := json.Marshal(map[string]any{"count": out.Count, "lastTimestamp": out.LastTimestamp, "message": out.Message})
		if err != nil {
			return err
		}
		return e.opt.Client.Patch(ctx, apiclient.Events, out.Namespace, out.Name, types.MergePatchType, text, nil)
	}
	if out.Count > 1 {
		if err := patch(); !apierrors.IsNotFound(err) {
			return err
		}
		return create() // it was told before the server was in reach, or is too old to be kept
	}
	if err := create(); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return patch()
}

// lasting reports whether an error is the server's last word.
func lasting(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) ||
		apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// bucket has a token more every so often, up to a most.
type bucket struct {
	left, most float64
	every      time.Duration
	at         time.Time
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.left = min(b.most, b.left+float64(d)/float64(b.every))
	}
	b.at = now
}

// has takes a token if there is one.
func (b *bucket) has(now time.Time) bool {
	b.fill(now)
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// take takes a token and returns how long it is until it is there.
func (b *bucket) take(now time.Time) time.Duration {
	b.fill(now)
	b.left--
	if b.left >= 0 {
		return 0
	}
	return time.Duration(-b.left * float64(b.every))
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// nameOf tells the events of one object apart.
func nameOf(reason, message string, at time.Time) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(reason + "\x00" + message + "\x00" + strconv.FormatInt(at.UnixNano(), 16))) // a hash never fails
	return strconv.FormatUint(h.Sum64(), 16)
}
