package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"
)

// API version and kind of the configuration of EventRateLimit.
const (
	eventRateLimitVersion = "eventratelimit.admission.k8s.io/v1alpha1"
	eventRateLimitKind    = "Configuration"
)

// defaultEventLimiters is the number of limiters of a limit without cacheSize.
const defaultEventLimiters = 4096

// eventRateLimitConfiguration is the configuration of EventRateLimit.
type eventRateLimitConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	Limits []eventLimit `json:"limits"`
}

// eventLimit limits the rate of events with the same key. The type selects the key.
type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize,omitempty"` // number of keys that are remembered
}

// eventKeys returns the key of an event by the type of the limit.
var eventKeys = map[string]func(admission.Attributes) string{
	"Server":          func(admission.Attributes) string { return "" },
	"Namespace":       func(a admission.Attributes) string { return a.GetNamespace() },
	"User":            func(a admission.Attributes) string { return a.GetUserInfo().GetName() },
	"SourceAndObject": sourceAndObjectKey,
}

func sourceAndObjectKey(a admission.Attributes) string {
	e, ok := a.GetObject().(*corev1.Event)
	if !ok {
		return ""
	}
	of := e.InvolvedObject
	return strings.Join([]string{e.Source.Component, e.Source.Host, of.Kind, of.Namespace, of.Name, string(of.UID),
		of.APIVersion}, "")
}

func (c *eventRateLimitConfiguration) validate() error {
	limits := field.NewPath("limits")
	if len(c.Limits) == 0 {
		return field.Invalid(limits, c.Limits, "must not be empty")
	}
	var all field.ErrorList
	for i, limit := range c.Limits {
		path := limits.Index(i)
		if eventKeys[limit.Type] == nil {
			all = append(all, field.NotSupported(path.Child("type"), limit.Type,
				[]string{"Server", "Namespace", "User", "SourceAndObject"}))
		}
		if limit.Burst <= 0 {
			all = append(all, field.Invalid(path.Child("burst"), limit.Burst, "must be positive"))
		}
		if limit.QPS <= 0 {
			all = append(all, field.Invalid(path.Child("qps"), limit.QPS, "must be positive"))
		}
		if limit.CacheSize < 0 {
			all = append(all, field.Invalid(path.Child("cacheSize"), limit.CacheSize, "must not be negative"))
		}
	}
	return all.ToAggregate()
}

// eventRateLimit limits the rate of new and changed events.
type eventRateLimit struct {
	*admission.Handler

	enforcers []*eventLimitEnforcer
}

func newEventRateLimit(c Config) (admission.Interface, error) {
	config := eventRateLimitConfiguration{TypeMeta: metav1.TypeMeta{APIVersion: eventRateLimitVersion,
		Kind: eventRateLimitKind}}
	if err := yaml.UnmarshalStrict(c.Configurations["EventRateLimit"], &config); err != nil {
		return nil, err
	}
	if config.APIVersion != eventRateLimitVersion || config.Kind != eventRateLimitKind {
		return nil, fmt.Errorf("must be apiVersion: %s, kind: %s", eventRateLimitVersion, eventRateLimitKind)
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	p := &eventRateLimit{Handler: admission.NewHandler(admission.Create, admission.Update)}
	for _, limit := range config.Limits {
		size := int(limit.CacheSize)
		switch {
		case limit.Type == "Server":
			size = 1
		case size == 0:
			size = defaultEventLimiters
		}
		p.enforcers = append(p.enforcers, &eventLimitEnforcer{limit: limit, limiters: lru.New(size)})
	}
	return p, nil
}

// Validate returns an error with status 429 if an event exceeds a limit.
func (p *eventRateLimit) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if _, ok := a.GetObject().(*corev1.Event); !ok || a.IsDryRun() {
		return nil
	}
	var exceeded []error
	for _, e := range p.enforcers {
		exceeded = append(exceeded, e.accept(a))
	}
	if err := errors.Join(exceeded...); err != nil {
		return apierrors.NewTooManyRequestsError(strings.ReplaceAll(err.Error(), "\n", ", "))
	}
	return nil
}

// eventLimitEnforcer holds the limiters of one limit.
type eventLimitEnforcer struct {
	limit eventLimit

	mu       sync.Mutex
	limiters *lru.Cache // of flowcontrol.PassiveRateLimiter by key
}

func (e *eventLimitEnforcer) accept(a admission.Attributes) error {
	key := eventKeys[e.limit.Type](a)
	e.mu.Lock()
	found, _ := e.limiters.Get(key)
	limiter, ok := found.(flowcontrol.PassiveRateLimiter)
	if !ok {
		limiter = flowcontrol.NewTokenBucketPassiveRateLimiter(float32(e.limit.QPS), int(e.limit.Burst))
		e.limiters.Add(key, limiter)
	}
	e.mu.Unlock()
	if !limiter.TryAccept() {
		return fmt.Errorf("limit reached on type %s for key %s", e.limit.Type, key)
	}
	return nil
}
