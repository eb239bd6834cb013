package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/workloads/autoscaling"
)

const (
	autoscalerWorkers = 5
	// autoscalerPeriod is the time between two decisions about an autoscaler.
	autoscalerPeriod = 15 * time.Second
)

// Autoscaling holds what the controller of HorizontalPodAutoscalers needs besides the clients of all controllers.
type Autoscaling struct {
	Mapper meta.RESTMapper
	Scales scale.ScalesGetter
	// PodMetrics returns the usage of pods from metrics.k8s.io.
	PodMetrics func(ctx context.Context, namespace, selector string) ([]metricsv1beta1.PodMetrics, error)
	// Get reads the metrics APIs.
	Get APIReader
}

// APIReader requests a path of the server's API and returns the response in JSON.
type APIReader func(ctx context.Context, path string, query url.Values) ([]byte, error)

// autoscalers runs workloads/autoscaling: it changes the scale of the targets of HorizontalPodAutoscalers.
type autoscalers struct {
	Config
	objects, pods cache.SharedIndexInformer
	gauges        *objectGauges[*autoscalingv2.HorizontalPodAutoscaler]

	mu        sync.Mutex
	memory    map[string]autoscaling.Memory // by key
	selectors map[string]labels.Selector    // of the targets, by key of the autoscaler
}

func newAutoscalerController(c Config) ([]*controller, error) {
	a := &autoscalers{
		Config: c, objects: c.Informers.Autoscaling().V2().HorizontalPodAutoscalers().Informer(),
		pods: c.Informers.Core().V1().Pods().Informer(), memory: map[string]autoscaling.Memory{},
		selectors: map[string]labels.Selector{},
	}
	a.gauges = newAutoscalerGauges(a.objects)
	ctrl := c.newController(a.sync)
	autoscalerCount.Set(0) // an earlier run of the controller may have counted
	ctrl.workers = autoscalerWorkers
	ctrl.waitFor(a.pods)
	enqueue := func(obj any) {
		for _, key := range objectKey(obj) {
			ctrl.queue.Add(key)
		}
	}
	err := ctrl.addEventHandler(a.objects, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			autoscalerCount.Inc()
			enqueue(obj)
		},
		UpdateFunc: func(before, after any) {
			old, ok := before.(*autoscalingv2.HorizontalPodAutoscaler)
			now, nowOK := after.(*autoscalingv2.HorizontalPodAutoscaler)
			// A change of the status waits for the next period.
			if ok && nowOK && old.Generation != now.Generation {
				enqueue(now)
			}
		},
		DeleteFunc: func(obj any) {
			obj = lastKnown(obj)
			autoscalerCount.Dec()
			enqueue(obj)
		},
	})
	if err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.addEventHandler(a.objects, a.gauges.handler())
}

func (a *autoscalers) sync(ctx context.Context, key string) (time.Duration, error) {
	obj, found, err := a.objects.GetIndexer().GetByKey(key)
	hpa, ok := obj.(*autoscalingv2.HorizontalPodAutoscaler)
	if err != nil || !found || !ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.memory, key)
		delete(a.selectors, key)
		return 0, nil
	}
	a.mu.Lock()
	start := time.Now()
	in := autoscaling.Input{Now: start, Autoscaler: hpa, Memory: a.memory[key]}
	a.mu.Unlock()
	var of schema.GroupResource
	if in.Scale, of, in.ScaleError = a.readScale(ctx, hpa); in.ScaleError == nil {
		a.observe(ctx, key, &in)
	}
	d := autoscaling.Decide(in)
	evaluation := time.Since(start)
	if d.Rescale {
		d = d.Rescaled(a.rescale(ctx, hpa, of, in.Scale, d.Replicas))
		a.Log.Info("target rescaled", "hpa", key, "from", in.Scale.Spec.Replicas, "to", d.Replicas, "reason", d.Reason,
			"err", d.Err)
	}
	a.mu.Lock()
	a.memory[key] = d.Memory
	a.mu.Unlock()
	for _, e := range d.Events {
		a.Events.Event(reference(hpa), e.Type, e.Reason, e.Message)
	}
	if d.Err != nil && ctx.Err() == nil {
		a.Log.Debug("autoscaler has no complete decision", "hpa", key, "err", d.Err)
	}
	err = a.writeStatus(ctx, hpa, d.Status)
	_, specError := schema.ParseGroupVersion(hpa.Spec.ScaleTargetRef.APIVersion)
	a.measure(hpa, &in, &d, specError != nil, err, evaluation, time.Since(start))
	return autoscalerPeriod, err
}

// observe reads the pods of the target, the values of the metrics, and which other autoscalers share them.
func (a *autoscalers) observe(ctx context.Context, key string, in *autoscaling.Input) {
	text, namespace := in.Scale.Status.Selector, in.Autoscaler.Namespace
	if text == "" {
		return
	}
	selector, err := labels.Parse(text)
	if err != nil {
		in.SelectorError = err
		return
	}
	a.mu.Lock()
	a.selectors[key] = selector
	others := maps.Clone(a.selectors)
	a.mu.Unlock()
	for _, pod := range namespaced[*corev1.Pod](a.pods, namespace) {
		if selector.Matches(labels.Set(pod.Labels)) {
			in.Pods = append(in.Pods, pod)
		}
	}
	in.Sharing = sharing(namespace, others, in.Pods)
	a.observeValues(ctx, in)
	if usesResources(in.Autoscaler) {
		a.observeUsage(ctx, in)
	}
}

// usesResources reports whether a metric is the resource usage of pods.
func usesResources(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	return slices.ContainsFunc(hpa.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Resource != nil || m.ContainerResource != nil
	})
}

// observeUsage reads the resource usage of the pods of the target.
func (a *autoscalers) observeUsage(ctx context.Context, in *autoscaling.Input) {
	usage, err := a.Autoscaling.PodMetrics(ctx, in.Autoscaler.Namespace, in.Scale.Status.Selector)
	if err != nil {
		in.UsageError = fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
		return
	}
	for i := range usage {
		u := autoscaling.PodUsage{
			Pod: usage[i].Name, At: usage[i].Timestamp.Time, Window: usage[i].Window.Duration,
			Containers: map[string]corev1.ResourceList{},
		}
		for _, c := range usage[i].Containers {
			u.Containers[c.Name] = c.Usage
		}
		in.Usage = append(in.Usage, u)
	}
}

// sharing returns the keys of the autoscalers of a namespace whose targets select one of the pods.
func sharing(namespace string, selectors map[string]labels.Selector, pods []*corev1.Pod) (keys []string) {
	for key, selector := range selectors {
		of, _, err := cache.SplitMetaNamespaceKey(key)
		if err != nil || of != namespace {
			continue
		}
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return selector.Matches(labels.Set(p.Labels)) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// readScale returns the scale of the target and its resource.
func (a *autoscalers) readScale(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler) (
	*autoscalingv1.Scale, schema.GroupResource, error) {
	target := hpa.Spec.ScaleTargetRef
	version, err := schema.ParseGroupVersion(target.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, err //nolint:wrapcheck // users read it in the condition
	}
	mappings, err := a.Autoscaling.Mapper.RESTMappings(schema.GroupKind{Group: version.Group, Kind: target.Kind})
	if err != nil {
		return nil, schema.GroupResource{}, err //nolint:wrapcheck // users read it in the condition
	}
	first := errors.New("unrecognized resource")
	for i, m := range mappings {
		of := m.Resource.GroupResource()
		s, err := a.Autoscaling.Scales.Scales(hpa.Namespace).Get(ctx, of, target.Name, metav1.GetOptions{})
		if err == nil {
			return s, of, nil
		}
		if i == 0 {
			first = err
		}
	}
	return nil, schema.GroupResource{}, first
}

// rescale changes the scale of the target. It retries conflicts.
func (a *autoscalers) rescale(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, of schema.GroupResource,
	s *autoscalingv1.Scale, replicas int32) error {
	scales, s := a.Autoscaling.Scales.Scales(hpa.Namespace), s.DeepCopy()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		s.Spec.Replicas = replicas
		_, err := scales.Update(ctx, of, s, metav1.UpdateOptions{})
		if err == nil {
			return nil
		}
		if live, readErr := scales.Get(ctx, of, hpa.Spec.ScaleTargetRef.Name, metav1.GetOptions{}); readErr == nil {
			s = live
		}
		return err //nolint:wrapcheck // RetryOnConflict checks it
	})
}

// writeStatus writes the status if it has changed.
func (a *autoscalers) writeStatus(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler,
	status autoscalingv2.HorizontalPodAutoscalerStatus) error {
	if apiequality.Semantic.DeepEqual(hpa.Status, status) {
		return nil
	}
	out := *hpa
	out.Status = status
	_, err := a.Client.AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace).UpdateStatus(ctx, &out,
		metav1.UpdateOptions{})
	if ignoreNotFound(err) == nil {
		return nil
	}
	a.Events.Event(reference(hpa), corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
	return fmt.Errorf("update status of autoscaler %s/%s: %w", hpa.Namespace, hpa.Name, err)
}

func reference(hpa *autoscalingv2.HorizontalPodAutoscaler) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: "HorizontalPodAutoscaler",
		Namespace: hpa.Namespace, Name: hpa.Name, UID: hpa.UID, ResourceVersion: hpa.ResourceVersion,
	}
}

// PodMetricsOf returns a function for Autoscaling.PodMetrics.
func PodMetricsOf(get APIReader) func(ctx context.Context, namespace, selector string) (
	[]metricsv1beta1.PodMetrics, error) {
	return func(ctx context.Context, namespace, selector string) ([]metricsv1beta1.PodMetrics, error) {
		raw, err := get(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods",
			url.Values{"labelSelector": {selector}})
		if err != nil {
			return nil, err
		}
		var list metricsv1beta1.PodMetricsList
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("decode pod metrics: %w", err)
		}
		return list.Items, nil
	}
}

// GetJSON returns a function for Autoscaling.Get that requests through a client.
func GetJSON(client kubernetes.Interface) APIReader {
	return func(ctx context.Context, path string, query url.Values) ([]byte, error) {
		r := client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json")
		for name, values := range query {
			for _, v := range values {
				r = r.Param(name, v)
			}
		}
		result := r.Do(ctx)
		if err := result.Error(); err != nil { // has the message of the API, which Raw drops
			return nil, err //nolint:wrapcheck // users read it in the condition
		}
		return result.Raw() //nolint:wrapcheck // users read it in the condition
	}
}
