package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"berth/workloads/autoscaling"
)

const (
	customMetricsPath   = "/apis/custom.metrics.k8s.io"
	externalMetricsPath = "/apis/external.metrics.k8s.io/v1beta1"
)

// observeValues reads the values of the Pods, Object and External metrics. Without such metrics nothing is requested.
func (a *autoscalers) observeValues(ctx context.Context, in *autoscaling.Input) {
	specs, namespace := in.Autoscaler.Spec.Metrics, in.Autoscaler.Namespace
	custom := customMetrics{get: a.Autoscaling.Get}
	for i := range specs {
		var v autoscaling.Values
		switch m := &specs[i]; {
		case m.Pods != nil:
			v.ByPod, v.Err = custom.ofPods(ctx, namespace, in.Scale.Status.Selector, m.Pods.Metric)
		case m.Object != nil:
			v.Total, v.Err = a.objectMetric(ctx, &custom, namespace, m.Object)
		case m.External != nil:
			v.Total, v.Err = a.externalMetric(ctx, namespace, m.External.Metric)
		default:
			continue
		}
		if in.Values == nil {
			in.Values = make([]autoscaling.Values, len(specs))
		}
		in.Values[i] = v
	}
}

// customMetrics reads custom.metrics.k8s.io for one sync of an autoscaler.
type customMetrics struct {
	get  APIReader
	base string // path of the served version, once it is known
}

// errNoCustomMetrics has the message of upstream's client.
var errNoCustomMetrics = errors.New("no custom metrics API (custom.metrics.k8s.io) registered")

// discover sets the path of the preferred version, or of the first known one.
func (c *customMetrics) discover(ctx context.Context) error {
	if c.base != "" {
		return nil
	}
	raw, err := c.get(ctx, customMetricsPath, nil)
	switch {
	case apierrors.IsNotFound(err):
		return errNoCustomMetrics
	case err != nil:
		return err
	}
	var group metav1.APIGroup
	if err := json.Unmarshal(raw, &group); err != nil {
		return fmt.Errorf("decode API group: %w", err)
	}
	known := []string{"v1beta2", "v1beta1"}
	for _, v := range append([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions...) {
		if slices.Contains(known, v.Version) {
			c.base = customMetricsPath + "/" + v.Version
			return nil
		}
	}
	return errors.New("no known available metric versions found")
}

// list returns the values at a path below the version. The versions v1beta1 and v1beta2 have the same fields for the
// value and the name of the object.
func (c *customMetrics) list(ctx context.Context, path, selector string, metric *metav1.LabelSelector) (
	[]custommetrics.MetricValue, error) {
	list, err := func() (list custommetrics.MetricValueList, err error) {
		query := url.Values{}
		if err := addSelector(query, "metricLabelSelector", metric); err != nil {
			return list, err
		}
		if err := c.discover(ctx); err != nil {
			return list, err
		}
		if selector != "" {
			query.Set("labelSelector", selector)
		}
		raw, err := c.get(ctx, c.base+path, query)
		if err != nil {
			return list, err
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return list, fmt.Errorf("decode values: %w", err)
		}
		return list, nil
	}()
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return list.Items, nil
}

// ofPods returns the values of a metric of the selected pods in milli-units.
func (c *customMetrics) ofPods(ctx context.Context, namespace, selector string,
	metric autoscalingv2.MetricIdentifier) (map[string]int64, error) {
	list, err := c.list(ctx, "/namespaces/"+namespace+"/pods/*/"+metric.Name, selector, metric.Selector)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	out := make(map[string]int64, len(list))
	for i := range list {
		out[list[i].DescribedObject.Name] = list[i].Value.MilliValue()
	}
	return out, nil
}

// objectMetric returns the value of a metric of an object in milli-units. The object is in a namespace, or is the
// namespace itself.
func (a *autoscalers) objectMetric(ctx context.Context, custom *customMetrics, namespace string,
	source *autoscalingv2.ObjectMetricSource) (int64, error) {
	of := source.DescribedObject
	kind := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind).GroupKind()
	path := "/namespaces/" + namespace + "/metrics/" + source.Metric.Name
	if kind != (schema.GroupKind{Kind: "Namespace"}) {
		m, err := a.Autoscaling.Mapper.RESTMapping(kind)
		if err != nil {
			return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: unable to map kind %s to resource: "+
				"%w", kind, err)
		}
		path = "/namespaces/" + namespace + "/" + m.Resource.GroupResource().String() + "/" + of.Name + "/" +
			source.Metric.Name
	}
	list, err := custom.list(ctx, path, "", source.Metric.Selector)
	if err != nil {
		return 0, err
	}
	if len(list) != 1 {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server "+
			"returned %d results when we asked for exactly one", len(list))
	}
	return list[0].Value.MilliValue(), nil
}

// externalMetric returns the sum of the values of an external metric in milli-units.
func (a *autoscalers) externalMetric(ctx context.Context, namespace string, metric autoscalingv2.MetricIdentifier) (
	sum int64, err error) {
	query := url.Values{}
	if err := addSelector(query, "labelSelector", metric.Selector); err != nil {
		return 0, err
	}
	raw, err := a.Autoscaling.Get(ctx, externalMetricsPath+"/namespaces/"+namespace+"/"+metric.Name, query)
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	var list externalmetrics.ExternalMetricValueList
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: decode values: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	for i := range list.Items {
		sum += list.Items[i].Value.MilliValue()
	}
	return sum, nil
}

// addSelector adds a label selector that selects something less than everything.
func addSelector(query url.Values, name string, of *metav1.LabelSelector) error {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return err //nolint:wrapcheck // users read it in the condition
	}
	if of != nil && selector.String() != labels.Everything().String() {
		query.Set(name, selector.String())
	}
	return nil
}
