package controllers

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"berth/workloads/autoscaling"
)

// metricsAPI serves responses by path, and records the requests.
type metricsAPI struct {
	responses map[string]string

	mu       sync.Mutex
	requests []string
}

func (m *metricsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	query, _ := r.URL.Query(), r.ParseForm()
	m.requests = append(m.requests, strings.TrimSuffix(r.URL.Path+"?"+query.Encode(), "?"))
	text, found := m.responses[r.URL.Path]
	w.Header().Set("Content-Type", "application/json")
	if !found {
		w.WriteHeader(http.StatusNotFound)
		text = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, ` +
			`"message": "no such metric"}`
	}
	fmt.Fprint(w, text)
}

// observed returns what the controller reads for the metrics, and the requests.
func (m *metricsAPI) observed(t *testing.T, metrics ...autoscalingv2.MetricSpec) ([]autoscaling.Values, []string) {
	t.Helper()
	server := httptest.NewServer(m)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{networkingv1.SchemeGroupVersion})
	mapper.Add(networkingv1.SchemeGroupVersion.WithKind("Ingress"), meta.RESTScopeNamespace)
	a := &autoscalers{Config: Config{Autoscaling: Autoscaling{Mapper: mapper, Get: GetJSON(client)}}}
	in := autoscaling.Input{
		Autoscaler: &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
			Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: metrics},
		},
		Scale: &autoscalingv1.Scale{Status: autoscalingv1.ScaleStatus{Selector: "app=web"}},
	}
	a.observeValues(t.Context(), &in)
	m.mu.Lock()
	defer m.mu.Unlock()
	return in.Values, m.requests
}

func identifier(selector ...string) autoscalingv2.MetricIdentifier {
	m := autoscalingv2.MetricIdentifier{Name: "rps"}
	for _, value := range selector {
		m.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"verb": value}}
	}
	return m
}

func podsSource(m autoscalingv2.MetricIdentifier) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Pods: &autoscalingv2.PodsMetricSource{Metric: m}}
}

func objectSource(apiVersion, kind, name string, m autoscalingv2.MetricIdentifier) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Object: &autoscalingv2.ObjectMetricSource{Metric: m,
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: name}}}
}

func externalSource(m autoscalingv2.MetricIdentifier) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{External: &autoscalingv2.ExternalMetricSource{Metric: m}}
}

const (
	bothVersions = `{"kind": "APIGroup", "versions": [{"version": "v1beta2"}, {"version": "v1beta1"}], ` +
		`"preferredVersion": {"version": "v1beta2"}}`
	oldVersion = `{"kind": "APIGroup", "versions": [{"version": "v2"}, {"version": "v1beta1"}], ` +
		`"preferredVersion": {"version": "v2"}}`
	customValues = `{"items": [{"describedObject": {"name": "web-0"}, "value": "1500m"}, ` +
		`{"describedObject": {"name": "web-1"}, "value": "2"}]}`
	oneValue = `{"items": [{"describedObject": {"name": "web"}, "value": "3k"}]}`
)

// TestAutoscalerReadsValues checks the requests to the metrics APIs, and what the controller makes of the responses.
func TestAutoscalerReadsValues(t *testing.T) {
	t.Parallel()
	api := &metricsAPI{responses: map[string]string{
		customMetricsPath: bothVersions,
		customMetricsPath + "/v1beta2/namespaces/ns/pods/*/rps":                            customValues,
		customMetricsPath + "/v1beta2/namespaces/ns/ingresses.networking.k8s.io/front/rps": oneValue,
		customMetricsPath + "/v1beta2/namespaces/ns/metrics/rps":                           oneValue,
		externalMetricsPath + "/namespaces/ns/rps":                                         customValues,
	}}
	got, requests := api.observed(t, podsSource(identifier("get")), autoscalingv2.MetricSpec{},
		objectSource("networking.k8s.io/v1", "Ingress", "front", identifier("get")),
		objectSource("v1", "Namespace", "ns", identifier()), externalSource(identifier("get")))
	wantRequests := []string{
		customMetricsPath,
		customMetricsPath + "/v1beta2/namespaces/ns/pods/*/rps?labelSelector=app%3Dweb&metricLabelSelector=verb%3Dget",
		customMetricsPath + "/v1beta2/namespaces/ns/ingresses.networking.k8s.io/front/rps?" +
			"metricLabelSelector=verb%3Dget",
		customMetricsPath + "/v1beta2/namespaces/ns/metrics/rps",
		externalMetricsPath + "/namespaces/ns/rps?labelSelector=verb%3Dget",
	}
	if !slices.Equal(requests, wantRequests) {
		t.Errorf("got requests\n%s\nwant\n%s", strings.Join(requests, "\n"), strings.Join(wantRequests, "\n"))
	}
	if len(got) != 5 || !maps.Equal(got[0].ByPod, map[string]int64{"web-0": 1500, "web-1": 2000}) ||
		got[2].Total != 3000000 || got[3].Total != 3000000 || got[4].Total != 3500 {
		t.Errorf("got values %+v", got)
	}
	old := &metricsAPI{responses: map[string]string{
		customMetricsPath: oldVersion, customMetricsPath + "/v1beta1/namespaces/ns/metrics/rps": oneValue,
	}}
	if got, _ := old.observed(t, objectSource("v1", "Namespace", "ns", identifier())); got[0].Total != 3000000 {
		t.Errorf("from v1beta1: got values %+v", got)
	}
	none := &metricsAPI{}
	cpu := autoscalingv2.MetricSpec{Resource: &autoscalingv2.ResourceMetricSource{}}
	if got, requests := none.observed(t, cpu); got != nil || len(requests) > 0 {
		t.Errorf("without such a metric: got values %+v, requests %q", got, requests)
	}
}

// TestAutoscalerValueErrors checks the errors, which users read in conditions and events.
func TestAutoscalerValueErrors(t *testing.T) {
	t.Parallel()
	const custom = "unable to fetch metrics from custom metrics API: "
	pods := podsSource(identifier())
	for name, row := range map[string]struct {
		metric    autoscalingv2.MetricSpec
		responses map[string]string
		want      string
	}{
		"no custom metrics API": {pods, nil, custom + "no custom metrics API (custom.metrics.k8s.io) registered"},
		"no known version": {pods, map[string]string{customMetricsPath: `{"versions": [{"version": "v2"}]}`},
			custom + "no known available metric versions found"},
		"no such metric": {pods, map[string]string{customMetricsPath: bothVersions}, custom + "no such metric"},
		"no values of pods": {pods, map[string]string{customMetricsPath: bothVersions,
			customMetricsPath + "/v1beta2/namespaces/ns/pods/*/rps": `{"items": []}`},
			"no metrics returned from custom metrics API"},
		"not JSON": {pods, map[string]string{customMetricsPath: "<html>"}, custom + "decode API group: "},
		"unknown kind": {objectSource("v1", "Nothing", "x", identifier()), nil,
			custom + "unable to map kind Nothing to resource: "},
		"two values of an object": {objectSource("v1", "Namespace", "ns", identifier()), map[string]string{
			customMetricsPath: bothVersions, customMetricsPath + "/v1beta2/namespaces/ns/metrics/rps": customValues},
			custom + "the custom metrics API server returned 2 results when we asked for exactly one"},
		"no external metrics API": {externalSource(identifier()), nil,
			"unable to fetch metrics from external metrics API: no such metric"},
		"no external values": {externalSource(identifier()), map[string]string{
			externalMetricsPath + "/namespaces/ns/rps": `{"items": []}`},
			"no metrics returned from external metrics API"},
	} {
		got, _ := (&metricsAPI{responses: row.responses}).observed(t, row.metric)
		if got[0].Err == nil || !strings.HasPrefix(got[0].Err.Error(), row.want) {
			t.Errorf("%s: got error %v, want %s", name, got[0].Err, row.want)
		}
	}
}
