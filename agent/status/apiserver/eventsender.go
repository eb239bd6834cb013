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

// EventSenderOptions are the options of NewEventSender.
type EventSenderOptions struct {
	Client       *apiclient.Client
	NodeName     string
	Subscription *events.Subscription // events to send, closed by Run
	QPS          int                  // events per second, with Burst, 0: no limit
	Burst        int
	Log          *slog.Logger
	Now          func() time.Time // default time.Now

	// Busy reports that node and server have more important work. Events are then deferred for a
	// while. Optional.
	Busy func() bool
}

// EventSender sends events to the server. Repetitions of an event that waits are sent once with the
// newest count.
type EventSender struct {
	opt     EventSenderOptions
	limiter *tokenBucket
	pending chan struct{} // capacity 1

	mu             sync.Mutex
	waiting        map[string]*corev1.Event // by namespace and name
	order          []queuedEvent
	lastSent       time.Time // when the last event was dequeued
	objectLimiters map[types.UID]*tokenBucket
}

const (
	maxQueued = 1000
	// Events are deferred for maxDeferral while Busy, checked at deferralPoll, and are then sent at
	// deferralInterval. The events of fifty starting pods would otherwise delay their statuses.
	// More than maxDeferred waiting events are never deferred.
	maxDeferral      = 4 * time.Second
	deferralPoll     = 50 * time.Millisecond
	deferralInterval = 100 * time.Millisecond
	maxDeferred      = maxQueued / 2
	// Rate limit per object, as in upstream's spam filter.
	objectBurst       = 25
	objectInterval    = 5 * time.Minute
	maxObjectLimiters = 1000
)

// queuedEvent is the key of a waiting event and the time of its arrival.
type queuedEvent struct {
	key   string
	since time.Time
}

// NewEventSender returns an EventSender. The caller must call Run.
func NewEventSender(o EventSenderOptions) *EventSender {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &EventSender{opt: o, pending: make(chan struct{}, 1), waiting: map[string]*corev1.Event{},
		objectLimiters: map[types.UID]*tokenBucket{}}
	if o.QPS > 0 {
		e.limiter = &tokenBucket{tokens: float64(o.Burst), capacity: float64(o.Burst),
			interval: time.Second / time.Duration(o.QPS), updatedAt: o.Now()}
	}
	return e
}

// RecordNodeEvent queues an event of the node. It never blocks.
func (s *EventSender) RecordNodeEvent(kind, reason, message string) {
	now := metav1.NewTime(s.opt.Now())
	s.enqueue(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault,
			Name: s.opt.NodeName + "." + eventName(reason, message, now.Time)},
		// as upstream, which does not know the UID at startup
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: s.opt.NodeName, UID: types.UID(s.opt.NodeName)},
		Type:           kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: "kubelet", Host: s.opt.NodeName},
		ReportingController: "kubelet", ReportingInstance: s.opt.NodeName,
	})
}

// Run sends events until ctx is done.
func (s *EventSender) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev := range s.opt.Subscription.C {
			s.enqueue(&ev)
		}
	})
	defer wg.Wait()
	defer s.opt.Subscription.Close()
	for wait := retryBase; ctx.Err() == nil; {
		if s.deferred() {
			sleep(ctx, deferralPoll)
			continue
		}
		ev := s.next()
		if ev == nil {
			select {
			case <-ctx.Done():
			case <-s.pending:
			}
			continue
		}
		if s.limiter != nil {
			sleep(ctx, s.limiter.reserve(s.opt.Now()))
		}
		switch err := s.send(ctx, ev); {
		case err == nil:
			wait = retryBase
		case isPermanent(err):
			s.opt.Log.Debug("event rejected", "object", ev.InvolvedObject.Name, "reason", ev.Reason, "err",
				err)
		default: // the server is unavailable: retry
			s.requeue(ev)
			sleep(ctx, wait)
			wait = min(2*wait, retryMax)
		}
	}
	return nil
}

// enqueue adds an event to the queue.
func (s *EventSender) enqueue(ev *corev1.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ev.Namespace + "/" + ev.Name
	if _, waits := s.waiting[key]; !waits {
		if !s.withinObjectLimit(ev.InvolvedObject.UID) {
			return
		}
		if len(s.order) >= maxQueued { // long outage: the newest events are kept
			delete(s.waiting, s.order[0].key)
			s.order = s.order[1:]
		}
		s.order = append(s.order, queuedEvent{key, s.opt.Now()})
	}
	s.waiting[key] = ev
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// withinObjectLimit reports whether the rate limit of an object permits another event.
func (s *EventSender) withinObjectLimit(uid types.UID) bool {
	b := s.objectLimiters[uid]
	if b == nil {
		if len(s.objectLimiters) >= maxObjectLimiters {
			clear(s.objectLimiters) // an additional burst per object is acceptable
		}
		b = &tokenBucket{tokens: objectBurst, capacity: objectBurst, interval: objectInterval, updatedAt: s.opt.Now()}
		s.objectLimiters[uid] = b
	}
	return b.allow(s.opt.Now())
}

// deferred reports whether the next event is deferred.
func (s *EventSender) deferred() bool {
	s.mu.Lock()
	now, n := s.opt.Now(), len(s.order)
	waits := n > 0 && n <= maxDeferred && s.opt.Busy != nil &&
		(now.Before(s.order[0].since.Add(maxDeferral)) || now.Before(s.lastSent.Add(deferralInterval)))
	s.mu.Unlock()
	return waits && s.opt.Busy()
}

func (s *EventSender) next() *corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		return nil
	}
	key := s.order[0].key
	s.order, s.lastSent = s.order[1:], s.opt.Now()
	ev := s.waiting[key]
	delete(s.waiting, key)
	return ev
}

// requeue puts an event that could not be sent at the head of the queue, unless a newer repetition
// waits.
func (s *EventSender) requeue(ev *corev1.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ev.Namespace + "/" + ev.Name
	if _, newer := s.waiting[key]; newer {
		return
	}
	s.waiting[key] = ev
	s.order = append([]queuedEvent{{key: key}}, s.order...) // zero: not deferred again
}

// send creates the event, or increases the count of the existing one.
func (s *EventSender) send(ctx context.Context, ev *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out := ev.DeepCopy()
	out.TypeMeta = metav1.TypeMeta{}
	out.ObjectMeta = metav1.ObjectMeta{Namespace: ev.Namespace, Name: ev.Name}
	create := func() error { return s.opt.Client.Create(ctx, apiclient.Events, out.Namespace, out, nil) }
	patch := func() error {
		text, err := json.Marshal(map[string]any{"count": out.Count, "lastTimestamp": out.LastTimestamp,
			"message": out.Message})
		if err != nil {
			return err
		}
		return s.opt.Client.Patch(ctx, apiclient.Events, out.Namespace, out.Name, types.MergePatchType, text, nil)
	}
	if out.Count > 1 {
		if err := patch(); !apierrors.IsNotFound(err) {
			return err
		}
		return create() // never sent before, or expired on the server
	}
	if err := create(); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return patch()
}

// isPermanent reports whether a retry is useless.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err) ||
		apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// tokenBucket is a token bucket with one new token per interval.
type tokenBucket struct {
	tokens, capacity float64
	interval         time.Duration
	updatedAt        time.Time
}

func (b *tokenBucket) refill(now time.Time) {
	if d := now.Sub(b.updatedAt); d > 0 {
		b.tokens = min(b.capacity, b.tokens+float64(d)/float64(b.interval))
	}
	b.updatedAt = now
}

// allow takes a token if one is available.
func (b *tokenBucket) allow(now time.Time) bool {
	b.refill(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// reserve takes a token and returns the time until it is available.
func (b *tokenBucket) reserve(now time.Time) time.Duration {
	b.refill(now)
	b.tokens--
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens * float64(b.interval))
}

func sleep(ctx context.Context, d time.Duration) {
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

// eventName returns a suffix that distinguishes the events of one object.
func eventName(reason, message string, at time.Time) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(reason + "\x00" + message + "\x00" + strconv.FormatInt(at.UnixNano(), 16))) // never fails
	return strconv.FormatUint(h.Sum64(), 16)
}
