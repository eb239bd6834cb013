package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"berth/test/hosts"
)

// documentedMetric is a row of docs/reference/metrics.md.
type documentedMetric struct {
	kind   string
	labels []string
}

// cgroupMetricLabels are the labels that the reference calls cgroup labels.
var cgroupMetricLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

var (
	codePattern  = regexp.MustCompile("`([^`]*)`")
	valuePattern = regexp.MustCompile("= `[^`]*`")
)

// metricsReference reads docs/reference/metrics.md: the metrics of each section, and the names and
// patterns of those that are not provided.
func metricsReference(t *testing.T) (sections map[string]map[string]documentedMetric, missing []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	sections = map[string]map[string]documentedMetric{}
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		title, rows, _ := strings.Cut(part, "\n")
		sections[title] = map[string]documentedMetric{}
		for _, row := range strings.Split(rows, "\n| `")[1:] {
			cells := strings.Split("`"+row, "|")
			name := strings.Trim(cells[0], " `")
			if title == "Upstream metrics that are not provided" {
				for _, m := range codePattern.FindAllStringSubmatch(cells[0], -1) {
					missing = append(missing, m[1])
				}
				continue
			}
			d := documentedMetric{kind: strings.TrimSpace(cells[1])}
			if strings.Contains(cells[2], "cgroup labels") {
				d.labels = slices.Clone(cgroupMetricLabels)
			}
			labels := valuePattern.ReplaceAllString(cells[2], "")
			for _, m := range codePattern.FindAllStringSubmatch(labels, -1) {
				d.labels = append(d.labels, m[1])
			}
			slices.Sort(d.labels)
			sections[title][name] = d
		}
	}
	return sections, missing
}

// families scrapes the metrics of a path.
func (a *kubeletClient) families(path string) map[string]*dto.MetricFamily {
	a.t.Helper()
	code, body := a.get(path)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if code != 200 || err != nil {
		a.t.Fatalf("%s: %d %v\n%s", path, code, err, body)
	}
	return all
}

// checkMetricsReference compares everything that the agent exposes with docs/reference/metrics.md, and
// with the metrics that kubernetes-mixin queries.
func (a *kubeletClient) checkMetricsReference() {
	sections, missing := metricsReference(a.t)
	exposed := map[string]bool{}
	for path, titles := range map[string][]string{
		"/metrics": {
			"Agent: upstream metrics", "Agent: berth metrics", "DNS server", "Service proxy",
			"Load balancer addresses", "Network policies",
		},
		"/metrics/probes":   {"Probes"},
		"/metrics/resource": {"Resource usage: `/metrics/resource`"},
		"/metrics/cadvisor": {"cAdvisor: `/metrics/cadvisor`"},
	} {
		for name, f := range a.families(path) {
			exposed[name] = true
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue // documented as groups
			}
			found := false
			for _, title := range titles {
				if d, is := sections[title][name]; is {
					found = true
					a.checkFamily(path, f, d)
				}
			}
			if !found {
				a.t.Errorf("%s of %s is not in the reference", name, path)
			}
		}
	}
	a.checkMixin(sections, missing, exposed)
	a.checkKubeletMetricValues()
	a.checkEventStreamMetrics()
}

func (a *kubeletClient) checkFamily(path string, f *dto.MetricFamily, d documentedMetric) {
	if kind := strings.ToLower(f.GetType().String()); kind != d.kind {
		a.t.Errorf("%s of %s is a %s, documented as a %s", f.GetName(), path, kind, d.kind)
	}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		if !slices.Equal(labels, d.labels) {
			a.t.Errorf("%s of %s has labels %v, documented are %v", f.GetName(), path, labels, d.labels)
			return
		}
	}
}

// onlyAfter are metrics of which this node has no samples: why.
var onlyAfter = map[string]string{
	"kubelet_evictions":                           "no pod was evicted",
	"kubelet_runtime_operations_errors_total":     "no call may have failed",
	"storage_operation_errors_total":              "no volume failed",
	"rest_client_requests_total":                  "the node has no server, see the test of joined nodes",
	"rest_client_request_duration_seconds":        "the node has no server, see the test of joined nodes",
	"container_fs_reads_bytes_total":              "the containers may not have used a block device",
	"container_fs_reads_total":                    "the containers may not have used a block device",
	"container_fs_writes_bytes_total":             "the containers may not have used a block device",
	"container_fs_writes_total":                   "the containers may not have used a block device",
	"kubelet_credential_provider_plugin_duration": "the node has no credential provider plugins",
	"kubelet_credential_provider_plugin_errors":   "the node has no credential provider plugins",
	"kubelet_volume_stats_available_bytes":        "the node has no claims",
	"kubelet_volume_stats_capacity_bytes":         "the node has no claims",
	"kubelet_volume_stats_inodes":                 "the node has no claims",
	"kubelet_volume_stats_health_status_abnormal": "the node has no claims",
	"kubelet_volume_stats_inodes_free":            "the node has no claims",
	"kubelet_volume_stats_inodes_used":            "the node has no claims",
	"kubelet_volume_stats_used_bytes":             "the node has no claims",
}

// checkMixin checks that each metric of kubernetes-mixin is exposed, or documented as not provided.
func (a *kubeletClient) checkMixin(
	sections map[string]map[string]documentedMetric, missing []string, exposed map[string]bool,
) {
	text, err := os.ReadFile("testdata/kubernetes-mixin-metrics.txt")
	if err != nil {
		a.t.Fatal(err)
	}
	for name := range strings.Lines(string(text)) {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if slices.ContainsFunc(missing, func(p string) bool {
			prefix, group := strings.CutSuffix(p, "*")
			return name == p || group && strings.HasPrefix(name, prefix)
		}) {
			if exposed[name] {
				a.t.Errorf("%s is exposed and documented as not provided", name)
			}
			continue
		}
		_, later := onlyAfter[name]
		documented := false
		for _, rows := range sections {
			if _, is := rows[name]; is {
				documented = true
			}
		}
		if !exposed[name] && !later || later && !documented {
			a.t.Errorf("%s: exposed %t, documented %t", name, exposed[name], documented)
		}
	}
}

// checkKubeletMetricValues checks metrics against the pods of the node.
func (a *kubeletClient) checkKubeletMetricValues() {
	value := func(name string, labels ...string) (sum float64) {
		for _, m := range a.families("/metrics")[name].GetMetric() {
			var all []string
			for _, l := range m.GetLabel() {
				all = append(all, l.GetName()+"="+l.GetValue())
			}
			if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(all, l) }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
	const emptyDir = "kubernetes.io/empty-dir"
	for _, want := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"kubelet_running_pods", nil, 1},
		{"kubelet_running_containers", []string{"container_state=running"}, 3},
		{"kubelet_desired_pods", []string{"static=true"}, 2},
		{"volume_manager_total_volumes", []string{"plugin_name=" + emptyDir, "state=actual_state_of_world"}, 1},
		{"volume_manager_total_volumes", []string{"plugin_name=" + emptyDir, "state=desired_state_of_world"}, 1},
		{"storage_operation_duration_seconds", []string{"volume_plugin=" + emptyDir, "operation_name=volume_mount",
			"status=success"}, 1},
		{"kubelet_pleg_relist_duration_seconds", nil, 1},
		{"kubelet_pleg_last_seen_seconds", nil, 1e9},
		{"kubelet_pod_worker_duration_seconds", nil, 1},
		{"kubelet_runtime_operations_total", []string{"operation_type=run_podsandbox"}, 2},
		{"kubelet_pod_start_sli_duration_seconds", nil, 1},
	} {
		if got := value(want.name, want.labels...); got < want.least {
			a.t.Errorf("%s%v: got %v, want at least %v", want.name, want.labels, got, want.least)
		}
	}
}

// checkEventStreamMetrics checks the event stream. containerd 1.6 has none.
func (a *kubeletClient) checkEventStreamMetrics() {
	all := a.families("/metrics")
	streams := all["kubelet_evented_pleg_connection_success_count"].GetMetric()[0].GetCounter().GetValue()
	events := all["kubelet_evented_pleg_connection_latency_seconds"].GetMetric()[0].GetHistogram().GetSampleCount()
	if (streams == 0) != (events == 0) || (streams > 0) != (a.Host.Version == hosts.Version2) {
		a.t.Errorf("got %v event streams with %d events", streams, events)
	}
}
